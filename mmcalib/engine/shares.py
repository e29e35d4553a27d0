"""Subjects of one question in shares, which several children take one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Condition

from mmcalib.engine.messages import Blank, File, Measure, Measured

# Subjects of a share: so few that nobody waits for long at the end.
SHARE = 16


class Shares:
    """Handed out in order, and answered in any. A thread may take, answer and give back while
    others do.
    """

    def __init__(self, request: Measure) -> None:
        self._request = request
        self._waiting = deque(range(0, len(request.subjects), SHARE))
        self._out: set[int] = set()
        self._answered: dict[int, Sequence[Measured]] = {}
        self._next = 0
        self._changed = Condition()

    @property
    def left(self) -> int:
        """Subjects that nobody has taken."""
        return len(self._waiting) * SHARE

    def take(self) -> int | None:
        """Where the next share begins; None where there is none."""
        with self._changed:
            if not self._waiting:
                return None
            start = self._waiting.popleft()
            self._out.add(start)
            return start

    def question(self, start: int) -> Measure:
        """What a child is asked for it."""
        return replace(self._request, subjects=self._subjects(start))

    def answer(self, start: int, answers: Sequence[Measured]) -> None:
        with self._changed:
            self._out.discard(start)
            self._answered[start] = [replace(a, index=start + n) for n, a in enumerate(answers)]
            self._changed.notify_all()

    def give_back(self, start: int) -> None:
        """Not answered: for another."""
        with self._changed:
            self._out.discard(start)
            self._waiting.appendleft(start)
            self._changed.notify_all()

    def stop(self) -> None:
        """None is handed out any more."""
        with self._changed:
            self._waiting.clear()

    def ready(self) -> Iterator[Measured]:
        """Answers whose turn it is."""
        while (answers := self._answered.pop(self._next, None)) is not None:
            self._next += SHARE
            yield from answers

    def wait(self) -> bool:
        """Until one is answered or given back; False where none is out."""
        with self._changed:
            if self._waiting or self._next in self._answered:
                return True
            if not self._out:
                return False
            self._changed.wait()
            return True

    def _subjects(self, start: int) -> tuple[Blank | File, ...]:
        return self._request.subjects[start : start + SHARE]
