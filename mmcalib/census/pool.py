"""The pool of local worker processes that probe items."""

from __future__ import annotations

import mmap
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from mmcalib.census.executor import TIMEOUT_S, ProbeFunction, ProbeResult, ProbeTask, count_fitting
from mmcalib.census.worker import ITEMS_BEGUN, pack_task
from mmcalib.domain.items import Skipped, encode_line, loaded_bytes
from mmcalib.errors import MmcalibError
from mmcalib.processes import Closing, Worker
from mmcalib.storage.location import allowed_hosts

# Indices of fields in /proc/PID/stat (proc(5)), counted after the process name.
_UTIME, _STIME = 11, 12

# On top of what the process itself needs. vLLM's largest image takes 0.7 GB decoded.
MEMORY_BYTES = 4 << 30

# The kernel may kill or stop a worker once for reasons of its own, but hardly twice for one item.
# A worker that was busy most of the time would be busy again, so it gets both strikes at once.
_STRIKES = 2
_BUSY = 0.5

_POLL_S = 0.25

# Allows a busy machine to import packages from a network drive.
_START_S = 60.0

# A pipe must hold this much for a busy worker; on Linux it holds 200 KiB.
_AHEAD_BYTES = 1 << 16

# Short enough to write the cache every second, long enough to cost the parent little per item.
_CHUNK_S = 0.1
_FIRST_CHUNK, _LARGEST_CHUNK = 64, 256


@dataclass(slots=True, eq=False)
class _Chunk:
    """A submitted chunk; its answers are None until they arrive."""

    orders: Sequence[ProbeTask]
    answers: list[ProbeResult | None]


@dataclass(slots=True, eq=False)
class _Run:
    """Orders of a chunk for one worker, `done` of them answered; one order if it has strikes."""

    chunk: _Chunk
    at: Sequence[int]
    strikes: int = 0
    done: int = 0

    def orders(self) -> list[ProbeTask]:
        return [self.chunk.orders[index] for index in self.at]

    def put(self, answers: Sequence[ProbeResult]) -> None:
        for index, answer in zip(self.at[self.done :], answers, strict=False):
            self.chunk.answers[index] = answer
        self.done += len(answers)


class ProbeWorker(Worker):
    """A worker process that probes items, from the hosts that are allowed when it starts.

    `given` are its unanswered runs in order; the first started at `taken_s`. The worker started its
    `number`th item at `since_s`, and had used `halfway_s` of CPU time at half the item's timeout.
    """

    def __init__(self, look: ProbeFunction, memory_bytes: int, send_s: float) -> None:
        shared = os.memfd_create("mmcalib-begun")
        os.truncate(shared, ITEMS_BEGUN.size)
        self._begun = mmap.mmap(shared, ITEMS_BEGUN.size)
        super().__init__("mmcalib.census.worker", memory_bytes, files=[shared], send_s=send_s)
        os.close(shared)
        self.send((look, allowed_hosts()))
        self.given: deque[_Run] = deque()
        self.answered = self.number = 0
        self.since_s, self.taken_s = time.monotonic(), 0.0
        self.halfway_s: float | None = None

    def items_begun(self) -> int:
        return int(ITEMS_BEGUN.unpack_from(self._begun)[0])

    def cpu_s(self) -> float:
        """Return the worker's CPU seconds; 0 if they cannot be read."""
        try:
            words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[_UTIME]) + int(words[_STIME])) / os.sysconf("SC_CLK_TCK")


class LocalPool(Closing):
    """Starts `workers` processes (default: one per CPU) with the first chunk.

    An item that exceeds `timeout_s` or kills its worker is retried once, then `Skipped`; an item
    that kept the CPU busy is `Skipped` at once. An item that needs more than `memory_bytes` fails.
    `look` must be an importable function.
    """

    def __init__(
        self,
        look: ProbeFunction,
        *,
        workers: int | None = None,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
        process: type[ProbeWorker] = ProbeWorker,
    ) -> None:
        self._worker_count = workers or len(os.sched_getaffinity(0))
        self._look, self._timeout_s, self._memory_bytes = look, timeout_s, memory_bytes
        self._process = process
        self._workers: list[ProbeWorker] = []
        self._waiting: deque[_Run] = deque()
        self.chunks_ahead, self.chunk_items = 2 * self._worker_count, _FIRST_CHUNK

    def submit(self, orders: Sequence[ProbeTask]) -> _Chunk:
        chunk = _Chunk(orders, [None] * len(orders))
        self._waiting.append(_Run(chunk, range(len(orders))))
        self._hand_out()
        return chunk

    def result(self, ticket: _Chunk) -> list[ProbeResult]:
        """Raises MmcalibError if the workers cannot probe any item."""
        while None in ticket.answers:
            self._hand_out()
            self._listen()
        return [answer for answer in ticket.answers if answer is not None]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._waiting.clear()

    def _hand_out(self) -> None:
        """Give each worker one run and, if it fits into the pipe, the next one."""
        while self._waiting:
            worker = min(self._workers, key=lambda worker: len(worker.given), default=None)
            if len(self._workers) < self._worker_count and (worker is None or worker.given):
                worker = self._process(self._look, self._memory_bytes, self._timeout_s)
                self._workers.append(worker)
            if worker is None or len(worker.given) > 1:
                return
            run = self._waiting[0]
            # Estimates the bytes that go through the pipe.
            items = (order.item for order in run.orders())
            if worker.given and sum(len(i.path) + loaded_bytes(i) for i in items) > _AHEAD_BYTES:
                return
            self._waiting.popleft()
            if not worker.given:
                worker.since_s = worker.taken_s = time.monotonic()
            worker.given.append(run)
            worker.send([pack_task(order) for order in run.orders()])

    def _listen(self) -> None:
        pipes = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(pipes), _POLL_S):
            worker = pipes[pipe]  # type: ignore[index]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                self._replace_lost(worker, worker.how_it_ended())
            else:
                self._take_answers(worker, message)
        now_s = time.monotonic()
        for worker in list(self._workers):
            items_begun = worker.items_begun()
            most_s = self._timeout_s if items_begun else max(_START_S, self._timeout_s)
            waited_s = now_s - worker.since_s
            if items_begun != worker.number or not worker.given:
                worker.number, worker.since_s, worker.halfway_s = items_begun, now_s, None
            elif waited_s > most_s and not worker.pipe.poll():
                spent_s = worker.cpu_s() - (worker.halfway_s or 0.0)
                busy = worker.halfway_s is not None and spent_s > _BUSY * most_s / 2
                self._replace_lost(worker, f"took more than {most_s:g} s", _STRIKES if busy else 1)
            elif waited_s > most_s / 2 and worker.halfway_s is None:
                worker.halfway_s = worker.cpu_s()

    def _take_answers(self, worker: ProbeWorker, reply: MmcalibError | list[ProbeResult]) -> None:
        if isinstance(reply, MmcalibError):
            raise reply
        if not reply:  # an earlier message had the run's last answer
            return
        run = worker.given[0]
        run.put(reply)
        worker.answered += len(reply)
        if run.done == len(run.at):
            worker.given.popleft()
            now_s = time.monotonic()
            took_s, worker.taken_s = now_s - worker.taken_s, now_s
            fitting = count_fitting(run.done, took_s, _CHUNK_S)
            self.chunk_items = min(fitting, 2 * self.chunk_items, _LARGEST_CHUNK)

    def _replace_lost(self, worker: ProbeWorker, why: str, strikes: int = 1) -> None:
        """Give the started item `strikes` strikes, and queue the worker's other items again."""
        items_begun = worker.items_begun()
        self._workers.remove(worker)
        worker.close()
        if not items_begun:
            raise MmcalibError(
                f"a worker process ended before its first item: {why}",
                hint="MMCALIB_DEBUG=1 shows its output",
            )
        at_work = items_begun - worker.answered - 1
        again: list[_Run] = []
        for run in worker.given:
            rest = list(run.at[run.done :])
            at_work, offset = at_work - len(rest), at_work
            if 0 <= offset < len(rest):
                # Retry it alone in another worker, or give up.
                struck = _Run(run.chunk, [rest.pop(offset)], run.strikes + strikes)
                if struck.strikes < _STRIKES:
                    self._waiting.appendleft(struck)
                else:
                    (order,) = struck.orders()
                    skipped = Skipped(order.item.path, f"the decoder {why}")
                    struck.put([ProbeResult(encode_line(skipped))])
            again.append(_Run(run.chunk, rest, run.strikes))
        self._waiting.extendleft(run for run in reversed(again) if run.at)
