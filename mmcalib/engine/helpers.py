"""Several children for one large question."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any

from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import (
    Blank,
    Done,
    File,
    Interim,
    Measure,
    Measured,
    OpenModel,
    Request,
    StartEngine,
    encode,
)
from mmcalib.errors import EngineError
from mmcalib.processes import free_bytes

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


# A helper imports vLLM and opens the model before it is of use.
WORTH_S = 20.0
# What a child takes that has processed large videos, and what is left to others.
_HELPER_BYTES = 2 << 30
_LEFT_BYTES = 4 << 30
# vLLM's processors go through the same memory: more children are no faster.
_MOST_HELPERS = 7
# For a thread whose child was killed.
_JOIN_S = 10.0


class CrewHost(EngineHost):
    """Where the rest of a question would take its child longer than `worth_s`, others are begun to
    process it too, at most `most`: as many as there are further cores, and memory. They answer as
    the child itself does, stay for later questions, and end before an engine starts.
    """

    def __init__(
        self,
        *,
        worth_s: float = WORTH_S,
        most: int | None = None,
        python: str = sys.executable,
        log: Path | None = None,
        on_said: Callable[[str], None] = lambda text: None,
        on_log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._worth_s, self._most = worth_s, most
        # All that were begun, and those of them that have the model open.
        self._helpers: list[EngineHost] = []
        self._ready: set[EngineHost] = set()
        self._threads: list[Thread] = []
        self._lock = Lock()
        super().__init__(python=python, log=log, on_said=on_said, on_log=on_log)

    @property
    def helpers(self) -> int:
        """How many can be asked now."""
        return len(self._ready)

    def close(self) -> None:
        """End the child, its helpers and everything that they started. Safe to call twice."""
        self._dismiss()
        super().close()

    def _converse(
        self, request: Request[Any], doing: str, silence_s: float | None = None
    ) -> Iterator[Any]:
        if isinstance(request, StartEngine) or request.sets_state:
            self._dismiss()
        if isinstance(request, Measure) and _is_shared(request):
            yield from self._together(request, doing, silence_s)
        else:
            yield from super()._converse(request, doing, silence_s)

    def _together(self, request: Measure, doing: str, silence_s: float | None) -> Iterator[Any]:
        shares = Shares(request)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        began, mine = time.monotonic(), 0
        hired = bool(self._helpers)
        for helper in list(self._ready):
            self._begin(shares, doing, helper)
        try:
            while shares.wait():
                start = shares.take()
                if start is not None:
                    answers = super()._converse(shares.question(start), doing, silence_s)
                    shares.answer(start, [a for a in answers if isinstance(a, Measured)])
                    mine += SHARE
                for answer in shares.ready():
                    if answer.refused_by == "host_memory" and self._helpers:
                        yield from self._alone(request, answer, doing, silence_s)
                    else:
                        yield answer
                took = (time.monotonic() - began) / max(mine, 1)
                if not hired and shares.left * took > self._worth_s:
                    hired = True
                    self._hire(shares, doing)
        finally:
            shares.stop()
        yield Done()

    def _alone(
        self, request: Measure, refused: Measured, doing: str, silence_s: float | None
    ) -> Iterator[Any]:
        """Without helpers there is more room."""
        self._dismiss()
        one = replace(request, subjects=(request.subjects[refused.index],))
        for answer in super()._converse(one, doing, silence_s):
            if isinstance(answer, Measured):
                yield replace(answer, index=refused.index)

    def _hire(self, shares: Shares, doing: str) -> None:
        cores, free = len(os.sched_getaffinity(0)), free_bytes()
        room = _MOST_HELPERS if free is None else max(0, free - _LEFT_BYTES) // _HELPER_BYTES
        most = _MOST_HELPERS if self._most is None else self._most
        number = min(cores - 1, room, most)
        for _ in range(number):
            # Begun here: a child ends with the thread that began it.
            helper = EngineHost(python=self._python, threads=max(1, cores // (number + 1)))
            self._helpers.append(helper)
            self._begin(shares, doing, helper, self._opened)

    def _begin(
        self, shares: Shares, doing: str, helper: EngineHost, opens: OpenModel | None = None
    ) -> None:
        """The helper takes shares in a thread of its own."""
        arguments = (shares, doing, helper, opens)
        thread = Thread(target=self._help, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _help(
        self, shares: Shares, doing: str, helper: EngineHost, opens: OpenModel | None
    ) -> None:
        try:
            if opens is not None:
                helper.ask(replace(opens, tries=False), "opening the model to help")
                with self._lock:
                    self._ready.add(helper)
            while (start := shares.take()) is not None:
                try:
                    shares.answer(start, list(helper.measure(shares.question(start), doing)))
                except BaseException:
                    shares.give_back(start)
                    raise
        except (EngineError, OSError):  # Its share is for the others.
            helper.close()
            with self._lock:
                self._ready.discard(helper)

    def _dismiss(self) -> None:
        """End them; the threads at work end of it."""
        gone, self._helpers = self._helpers, []
        for helper in gone:
            helper.kill()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._threads.clear()
        self._ready.clear()
        for helper in gone:
            helper.close()


class OnceHost(CrewHost):
    """Asks its child nothing twice: for several jobs over one corpus and one model. Files count as
    unchanged.
    """

    def __init__(self, **how: Any) -> None:
        self._heard: dict[bytes, list[object]] = {}
        super().__init__(**how)

    def _converse(
        self, request: Request[Any], doing: str, silence_s: float | None = None
    ) -> Iterator[Any]:
        if not request.repeatable:
            yield from super()._converse(request, doing, silence_s)
            return
        question = encode(request)
        if question in self._heard:
            yield from self._heard[question]
            return
        heard: list[object] = []
        for answer in super()._converse(request, doing, silence_s):
            heard.append(answer)
            # What the machine has no memory for now, it may have later.
            if not isinstance(answer, Interim) and not any(map(_lacks_memory, heard)):
                self._heard[question] = heard
            yield answer


def _lacks_memory(answer: object) -> bool:
    return isinstance(answer, Measured) and answer.refused_by == "host_memory"


def _is_shared(request: Measure) -> bool:
    """Files may end a child, and are few."""
    return len(request.subjects) > 2 * SHARE and not request.of_files
