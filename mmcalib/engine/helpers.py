"""Several children for one large question."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

from mmcalib.engine import messages as m
from mmcalib.engine.host import EngineHost
from mmcalib.errors import EngineError
from mmcalib.processes import free_bytes

# Subjects of a share: so few that nobody waits for long at the end.
SHARE = 16


class Shares:
    """The subjects of one question, handed out in order; `take` and `done.put` are for any thread.
    `done` takes where a share begins, with its answers, or None where it is for another.
    """

    def __init__(self, request: m.Measure) -> None:
        self._request = request
        self._waiting = deque(range(0, len(request.subjects), SHARE))
        self._answered: dict[int, Sequence[m.Measured]] = {}
        self.done: SimpleQueue[tuple[int, Sequence[m.Measured] | None]] = SimpleQueue()

    @property
    def left(self) -> int:
        """Subjects that nobody has taken."""
        return len(self._waiting) * SHARE

    def take(self) -> int | None:
        """Where the next share begins; None where there is none."""
        with contextlib.suppress(IndexError):
            return self._waiting.popleft()
        return None

    def question(self, start: int) -> m.Measure:
        """What a child is asked for it."""
        return replace(self._request, subjects=self._request.subjects[start : start + SHARE])

    def stop(self) -> None:
        """None is handed out any more."""
        self._waiting.clear()

    def collect(self, start: int) -> list[m.Measured] | None:
        """A share's answers, numbered as the subjects; None while other shares come first."""
        while start not in self._answered and (not self._waiting or not self.done.empty()):
            at, answers = self.done.get()
            if answers is None:
                self._waiting.appendleft(at)
            else:
                self._answered[at] = answers
        if (mine := self._answered.pop(start, None)) is None:
            return None
        return [replace(answer, index=start + n) for n, answer in enumerate(mine)]


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
    """Begins helpers where a question would take longer than `worth_s`: at most `most`, or as many
    as cores and memory allow. They stay for later questions, and end before an engine starts.
    """

    def __init__(self, *, worth_s: float = WORTH_S, most: int | None = None, **how: Any) -> None:
        self._worth_s, self._most = worth_s, most
        # All that were begun, and those of them that have the model open.
        self._helpers: list[EngineHost] = []
        self._ready: set[EngineHost] = set()
        self._threads: list[Thread] = []
        super().__init__(**how)

    @property
    def helpers(self) -> int:
        """How many can be asked now."""
        return len(self._ready)

    def close(self) -> None:
        """End the child, its helpers and everything that they started. Safe to call twice."""
        self._dismiss()
        super().close()

    def _converse(
        self, request: m.Request[Any], doing: str, silence_s: float | None = None
    ) -> Iterator[Any]:
        if isinstance(request, m.StartEngine) or request.sets_state:
            self._dismiss()
        # Files may end a child, and are few.
        if (
            isinstance(request, m.Measure)
            and not request.of_files
            and len(request.subjects) > 2 * SHARE
        ):
            yield from self._together(request, doing, silence_s)
        else:
            yield from super()._converse(request, doing, silence_s)

    def _together(self, request: m.Measure, doing: str, silence_s: float | None) -> Iterator[Any]:
        shares = Shares(request)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        began, mine = time.monotonic(), 0
        hired = bool(self._helpers)
        for helper in list(self._ready):
            self._begin(shares, doing, helper)
        try:
            for start in range(0, len(request.subjects), SHARE):
                while (answers := shares.collect(start)) is None:
                    if (own := shares.take()) is not None:
                        said = super()._converse(shares.question(own), doing, silence_s)
                        shares.done.put((own, [a for a in said if isinstance(a, m.Measured)]))
                        mine += SHARE
                    took = (time.monotonic() - began) / max(mine, 1)
                    if not hired and shares.left * took > self._worth_s:
                        hired = True
                        self._hire(shares, doing)
                for answer in answers:
                    if answer.refused_by == "host_memory" and self._helpers:
                        # Without helpers there is more room.
                        self._dismiss()
                        again = replace(request, subjects=(request.subjects[answer.index],))
                        for one in super()._converse(again, doing, silence_s):
                            if isinstance(one, m.Measured):
                                yield replace(one, index=answer.index)
                    else:
                        yield answer
        finally:
            shares.stop()
        yield m.Done()

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

    def _begin(self, *how: Any) -> None:
        thread = Thread(target=self._help, args=how, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _help(
        self, shares: Shares, doing: str, helper: EngineHost, opens: m.OpenModel | None = None
    ) -> None:
        try:
            if opens is not None:
                helper.ask(replace(opens, tries=False), "opening the model to help")
                self._ready.add(helper)
            while (start := shares.take()) is not None:
                answers = None
                try:
                    answers = list(helper.measure(shares.question(start), doing))
                finally:
                    shares.done.put((start, answers))
        except (EngineError, OSError):  # Its share is for the others.
            helper.close()
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
    """Asks nothing twice, for jobs over one corpus and model; files count as unchanged."""

    def __init__(self, **how: Any) -> None:
        self._heard: dict[bytes, list[object]] = {}
        super().__init__(**how)

    def _converse(
        self, request: m.Request[Any], doing: str, silence_s: float | None = None
    ) -> Iterator[Any]:
        if not request.repeatable:
            yield from super()._converse(request, doing, silence_s)
            return
        question = m.encode(request)
        if question in self._heard:
            yield from self._heard[question]
            return
        heard: list[object] = []
        for answer in super()._converse(request, doing, silence_s):
            heard.append(answer)
            # What the machine has no memory for now, it may have later.
            if not isinstance(answer, m.Interim) and not any(
                isinstance(one, m.Measured) and one.refused_by == "host_memory" for one in heard
            ):
                self._heard[question] = heard
            yield answer
