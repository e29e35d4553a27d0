"""The files that results are kept in, as they are read: whoever made them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from mmcalib.documents import read_document, read_json
from mmcalib.domain.items import Skipped
from mmcalib.errors import UsageError
from mmcalib.result.calibration import MADE_BY, CalibrationDocument
from mmcalib.result.census import CensusDocument
from mmcalib.result.survey import Survey

M = TypeVar("M", bound=BaseModel)
C = TypeVar("C", bound=CalibrationDocument)

# A million shapes, or lines.
_MOST_BYTES: Final = 1 << 28


def calibration_in(source: Path) -> Path:
    """The file itself, or that of a folder of results."""
    return source / "calibration.json" if source.is_dir() else source


def read_calibration(path: str | Path, kind: type[C]) -> C:
    """What `Calibration.save` wrote. Raises UsageError for anything else."""
    try:
        return _read(path, kind, ("known", "refused"), MADE_BY)
    except ValueError as error:
        raise UsageError(f"{path} is not a calibration: {error}", hint=MADE_BY) from error


def read_census(path: Path) -> Survey:
    """What `Survey.to_json` gave. Raises UsageError for anything else."""
    hint = "mmcalib scan --data DIR --out OUT writes one"
    try:
        return Survey.read(_read(path, CensusDocument, ("shapes", "prompts", "shards"), hint))
    except ValueError as error:
        raise UsageError(f"not a census: {path}: {error}", hint=hint) from error


def _read(path: str | Path, kind: type[M], long: tuple[str, ...], hint: str) -> M:
    """Raises UsageError where it cannot be read, and ValueError for what is no such document."""
    try:
        return kind.model_validate(read_json(path, _MOST_BYTES, long))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ValueError(": ".join(filter(None, (where, first["msg"])))) from error
    except (ValueError, RecursionError) as error:
        said = str(error) if type(error) is ValueError else f"not JSON: {error}"
        raise ValueError(said) from error


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
