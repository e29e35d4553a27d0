"""The files that results are kept in, as they are read: whoever made them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

from mmcalib.documents import read_json
from mmcalib.domain.items import Skipped
from mmcalib.errors import UsageError
from mmcalib.result.calibration import MADE_BY, CalibrationDocument
from mmcalib.result.part import said_of
from mmcalib.result.rehearsal import Rehearsal

C = TypeVar("C", bound=CalibrationDocument)

# A million lines.
_MOST_BYTES: Final = 1 << 28


def calibration_in(source: Path) -> Path:
    """The file itself, or that of a folder of results."""
    return source / "calibration.json" if source.is_dir() else source


def read_calibration(path: str | Path, kind: type[C]) -> C:
    """What `Calibration.save` wrote. Raises UsageError for anything else."""
    try:
        return kind.model_validate(read_json(path, _MOST_BYTES, ("known", "refused")))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=MADE_BY) from error
    except (ValueError, RecursionError) as error:
        said = f"{path} is not a calibration: {said_of(error)}"
        raise UsageError(said, hint=MADE_BY) from error


def read_rehearsal(path: Path) -> Rehearsal | None:
    """What `mmcalib rehearse --json` printed; None where the file is something else."""
    try:
        return Rehearsal.model_validate(read_json(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def skipped_jsonl(skipped: Iterable[Skipped]) -> str:
    """One `{"path", "reason"}` per line. Bytes of a name that are not UTF-8 stay as escapes."""
    return "".join(
        json.dumps({"path": entry.path, "reason": entry.reason}) + "\n" for entry in skipped
    )
