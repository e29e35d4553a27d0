"""`skipped.jsonl`: what was left out, one object per line, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable

from mmcalib.corpus.item import Skipped


def skipped_jsonl(skipped: Iterable[Skipped]) -> str:
    """One `{"path", "reason"}` per line. Bytes of a name that are not UTF-8 stay as escapes."""
    return "".join(
        json.dumps({"path": entry.path, "reason": entry.reason}) + "\n" for entry in skipped
    )
