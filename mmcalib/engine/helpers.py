"""Share one large measurement among several child processes, and cache answers."""

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

# Subjects per share. Small shares end at about the same time.
SHARE = 16


class WorkQueue:
    """Queue of one request's subjects in shares. Any thread may call `take` and `done.put`."""

    def __init__(self, request: m.Measure) -> None:
        self._request = request
        self._waiting = deque(range(0, len(request.subjects), SHARE))
        self._answered: dict[int, Sequence[m.Measured]] = {}
        # The start of a share with its answers, or with None if another child must process it.
        self.done: SimpleQueue[tuple[int, Sequence[m.Measured] | None]] = SimpleQueue()

    @property
    def remaining_subjects(self) -> int:
        return len(self._waiting) * SHARE

    def take(self) -> int | None:
        """Return the start of the next share; None if all are handed out."""
        with contextlib.suppress(IndexError):
            return self._waiting.popleft()
        return None

    def request_at(self, start: int) -> m.Measure:
        return replace(self._request, subjects=self._request.subjects[start : start + SHARE])

    def stop(self) -> None:
        self._waiting.clear()

    def collect(self, start: int) -> list[m.Measured] | None:
        """Return a share's answers, numbered like the subjects; None if it must be processed."""
        while start not in self._answered and (not self._waiting or not self.done.empty()):
            at, answers = self.done.get()
            if answers is None:
                self._waiting.appendleft(at)
            else:
                self._answered[at] = answers
        if (share := self._answered.pop(start, None)) is None:
            return None
        return [replace(answer, index=start + n) for n, answer in enumerate(share)]


# A helper first imports vLLM and opens the model.
WORTH_S = 20.0
# Memory of a child that has processed large videos, and memory left to other programs.
_HELPER_BYTES = 2 << 30
_RESERVED_BYTES = 4 << 30
# vLLM's processors share the memory bandwidth, so more children are not faster.
_MAX_HELPERS = 7
# Time for a thread to end after its child was killed.
_JOIN_S = 10.0


class HostWithHelpers(EngineHost):
    """Starts helpers, which stay, for a request that would exceed `worth_s`."""

    def __init__(self, *, worth_s: float = WORTH_S, **how: Any) -> None:
        self._worth_s = worth_s
        # All running helpers, and those that have the model open.
        self._helpers: list[EngineHost] = []
        self._ready: set[EngineHost] = set()
        self._threads: list[Thread] = []
        super().__init__(**how)

    def close(self) -> None:
        """End the child, its helpers and all processes they started. Safe to call twice."""
        self._dismiss()
        super().close()

    def _converse(self, request: m.Request[Any], doing: str) -> Iterator[Any]:
        if isinstance(request, m.OpenModel | m.StartEngine | m.UseImaginaryGpu):
            self._dismiss()
        # A file may crash a child, and a request has few of them.
        if (
            isinstance(request, m.Measure)
            and not request.has_files
            and len(request.subjects) > 2 * SHARE
        ):
            yield from self._converse_with_helpers(request, doing)
        else:
            yield from super()._converse(request, doing)

    def _converse_with_helpers(self, request: m.Measure, doing: str) -> Iterator[Any]:
        shares = WorkQueue(request)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        start_s, own_subjects = time.monotonic(), 0
        has_helpers = bool(self._helpers)
        for helper in list(self._ready):
            self._start_thread(shares, doing, helper)
        try:
            for start in range(0, len(request.subjects), SHARE):
                while (answers := shares.collect(start)) is None:
                    if (own := shares.take()) is not None:
                        replies = super()._converse(shares.request_at(own), doing)
                        shares.done.put((own, [a for a in replies if isinstance(a, m.Measured)]))
                        own_subjects += SHARE
                    subject_s = (time.monotonic() - start_s) / max(own_subjects, 1)
                    if not has_helpers and shares.remaining_subjects * subject_s > self._worth_s:
                        has_helpers = True
                        self._start_helpers(shares, doing)
                for answer in answers:
                    if answer.refused_by == "host_memory" and self._helpers:
                        # Ending the helpers frees memory.
                        self._dismiss()
                        again = replace(request, subjects=(request.subjects[answer.index],))
                        for reply in super()._converse(again, doing):
                            if isinstance(reply, m.Measured):
                                yield replace(reply, index=answer.index)
                    else:
                        yield answer
        finally:
            shares.stop()
        yield m.Done()

    def _start_helpers(self, shares: WorkQueue, doing: str) -> None:
        cores, free = len(os.sched_getaffinity(0)), free_bytes()
        room = _MAX_HELPERS if free is None else max(0, free - _RESERVED_BYTES) // _HELPER_BYTES
        number = min(cores - 1, room, _MAX_HELPERS)
        for _ in range(number):
            # Started in this thread: a child ends with the thread that started it.
            helper = EngineHost(python=self._python, threads=max(1, cores // (number + 1)))
            self._helpers.append(helper)
            self._start_thread(shares, doing, helper, self._open_request)

    def _start_thread(self, *args: Any) -> None:
        thread = Thread(target=self._process_shares, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _process_shares(
        self, shares: WorkQueue, doing: str, helper: EngineHost, opens: m.OpenModel | None = None
    ) -> None:
        try:
            if opens is not None:
                helper.ask(replace(opens, search_knobs=False), "opening the model to help")
                self._ready.add(helper)
            while (start := shares.take()) is not None:
                answers = None
                try:
                    answers = list(helper.measure(shares.request_at(start), doing))
                finally:
                    shares.done.put((start, answers))
        except (EngineError, OSError):  # Another child processes its share.
            helper.close()
            self._ready.discard(helper)

    def _dismiss(self) -> None:
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.kill()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._threads.clear()
        self._ready.clear()
        for helper in helpers:
            helper.close()


class CachingHost(HostWithHelpers):
    """Caches answers, for jobs over one corpus and model; it assumes that files do not change."""

    def __init__(self, **how: Any) -> None:
        self._cache: dict[bytes, list[object]] = {}
        super().__init__(**how)

    def _converse(self, request: m.Request[Any], doing: str) -> Iterator[Any]:
        if not request.cacheable:
            yield from super()._converse(request, doing)
            return
        key = m.encode(request)
        if key in self._cache:
            yield from self._cache[key]
            return
        answers: list[object] = []
        for answer in super()._converse(request, doing):
            answers.append(answer)
            # The machine may have more free memory later, so a failure for memory is not cached.
            if not isinstance(answer, m.Interim) and not any(
                isinstance(a, m.Measured) and a.refused_by == "host_memory" for a in answers
            ):
                self._cache[key] = answers
            yield answer
