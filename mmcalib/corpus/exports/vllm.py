"""vLLM's own log with `--enable-log-requests`: at the level DEBUG it has the body of each request.

`RequestLogger.log_request_body` in vllm/entrypoints/serve/utils/request_logger.py, 0.32. At INFO a
request is named with its sampling parameters alone, and nothing of its prompt or media.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from mmcalib.corpus.exported import Entry, Exported, ExportFormat, Unusable

_BODY: Final = re.compile(r"\bRequest \S+ JSON body: (?=\{)")
# The level and the time, as vLLM writes them; a year is not among it.
_TIME: Final = re.compile(r"\b[A-Z]+ (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_A_LEAP_YEAR: Final = 2000


def _recognises(entry: Entry) -> bool:
    return isinstance(entry, str) and not entry.lstrip().startswith(("{", "["))


def _requests(line: str) -> Iterator[Exported | Unusable]:
    found = _BODY.search(line)
    if found is None:
        return
    try:
        body = json.loads(line[found.end() :])
    except (ValueError, RecursionError):
        yield Unusable("its body is not whole: --max-log-len cuts it")
        return
    if "messages" in body:
        yield Exported(body, _seconds(line[: found.start()]))


def _seconds(head: str) -> float | None:
    """Since the year began."""
    time = _TIME.search(head)
    if time is None:
        return None
    month, day, hour, minute, second = map(int, time.groups())
    try:
        moment = datetime(_A_LEAP_YEAR, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return (moment - datetime(_A_LEAP_YEAR, 1, 1, tzinfo=UTC)).total_seconds()


FORMAT = ExportFormat(_recognises, _requests)
