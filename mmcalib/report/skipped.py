"""`skipped.jsonl`: what was left out, one object per line, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mmcalib.documents import read_document
from mmcalib.domain.items import Skipped
from mmcalib.errors import UsageError

# A million lines.
_MOST_BYTES: Final = 1 << 28


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
