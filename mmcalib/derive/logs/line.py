"""One line of a log, without what loggers, terminals and containers put around it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

# Messages that a terminal or an issue tracker has wrapped are put together again from this many.
AHEAD = 8

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|ESC\[[0-9;]*m")
# `(EngineCore_0 pid=72)`, `(VllmWorker rank=1 pid=12)`, `(Worker_TP0 pid=7286)`,
# `(RayWorkerWrapper pid=1463574, ip=10.0.0.60)`; nested ones come one after the other.
_PROCESS = re.compile(r"\(([A-Za-z][\w.]{0,60}(?: rank=\d{1,6})? pid=\d{1,12}[^()]{0,60})\) ?")
# `INFO 09-23 18:12:33 [gpu_worker.py:298] `; to 0.8 without the opening bracket; with DEBUG the
# path in the package.
_HEAD = re.compile(
    r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})? "
    r"(?:\[?([\w./]{1,200}\.py):(\d{1,6})\] ?)?"
)
# Where process and head are looked for: the rest of a line can be a whole configuration.
_FRONT_CHARS = 400


@dataclass(frozen=True, slots=True)
class Line:
    """`place` is the file name that logged, `place_line` the line in it, `process` the innermost
    that vLLM names.

    `ahead` are the texts of the next lines.
    """

    number: int
    text: str
    process: str | None
    level: str | None
    place: str | None
    place_line: int | None = None
    ahead: tuple[str, ...] = ()

    def message(self, complete: str) -> str:
        """The text; with the next lines where it breaks off before `complete`."""
        return self.text if complete in self.text else " ".join([self.text, *self.ahead])


def read_line(number: int, raw: str) -> Line:
    clean = _COLOUR.sub("", raw).replace("\x00", "").rstrip()
    front = clean[:_FRONT_CHARS]
    head = _HEAD.search(front)
    before = front[: head.start()] if head else front
    processes = list(_PROCESS.finditer(before))
    prefix = head or (processes[-1] if processes else None)
    return Line(
        number=number,
        text=clean[prefix.end() if prefix else 0 :].strip(),
        process=processes[-1].group(1) if processes else None,
        level=head.group(1) if head else None,
        place=head.group(2).rpartition("/")[2] if head and head.group(2) else None,
        place_line=int(head.group(3)) if head and head.group(3) else None,
    )


def read_lines(raw: Iterable[str]) -> Iterator[Line]:
    """The lines in their order, each with those that follow; numbers start at 1."""
    waiting: deque[Line] = deque()
    for number, text in enumerate(raw, 1):
        waiting.append(read_line(number, text))
        if len(waiting) > AHEAD:
            yield _with_next(waiting)
    while waiting:
        yield _with_next(waiting)


def _with_next(waiting: deque[Line]) -> Line:
    line = waiting.popleft()
    ahead = tuple(after.text for after in waiting)
    return replace(line, ahead=ahead)
