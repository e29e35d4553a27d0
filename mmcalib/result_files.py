"""The files that results are kept in, as they are read: whoever made them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from mmcalib.documents import open_document, read_document, read_json
from mmcalib.domain.items import Skipped
from mmcalib.errors import UsageError
from mmcalib.long_document import LongDocument
from mmcalib.result.calibration import MADE_BY, CalibrationDocument
from mmcalib.result.census_reading import read_survey
from mmcalib.result.part import complaint
from mmcalib.result.survey import Survey

C = TypeVar("C", bound=CalibrationDocument)

# A million lines.
_MOST_BYTES: Final = 1 << 28
# Of a census: seven million kinds of request, or fewer shapes, which take more memory.
_CENSUS_BYTES: Final = 1 << 31
_MOST_ENTRIES: Final = 4_000_000


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
        said = f"{path} is not a calibration: {_said(error)}"
        raise UsageError(said, hint=MADE_BY) from error


def read_census(path: Path) -> Survey:
    """What `Survey.to_json` gave. Raises UsageError for anything else."""
    hint = "mmcalib scan --data DIR --out OUT writes one"
    try:
        with open_document(path) as file:
            whole = BufferedReader(file)
            return read_survey(
                LongDocument(whole, most_bytes=_CENSUS_BYTES, most_entries=_MOST_ENTRIES)
            )
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a census: {path}: {_said(error)}", hint=hint) from error


def _said(error: ValueError | RecursionError) -> str:
    if isinstance(error, ValidationError):
        return complaint(error)
    return str(error) if type(error) is ValueError else f"not JSON: {error}"


def skipped_jsonl(skipped: Iterable[Skipped]) -> str:
    """One `{"path", "reason"}` per line. Bytes of a name that are not UTF-8 stay as escapes."""
    return "".join(
        json.dumps({"path": entry.path, "reason": entry.reason}) + "\n" for entry in skipped
    )


def read_skipped_jsonl(path: Path) -> list[Skipped]:
    """What `skipped_jsonl` wrote. Raises UsageError."""
    hint = "it is written beside the census; keep the two together"
    try:
        lines = read_document(path, _MOST_BYTES).splitlines()
        return [_entry(json.loads(line.decode())) for line in lines]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a list of what was skipped: {path}: {error}", hint=hint) from error


def _entry(line: object) -> Skipped:
    match line:
        case {"path": str(path), "reason": str(reason)}:
            return Skipped(path, reason)
    raise ValueError("a line has no path and reason")
