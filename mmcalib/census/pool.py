"""The pool of local worker processes that probe items."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait

from mmcalib.census.executor import TIMEOUT_S, ProbeFunction, ProbeResult, ProbeTask, count_fitting
from mmcalib.domain.items import Skipped, encode_line, loaded_bytes
from mmcalib.errors import MmcalibError
from mmcalib.processes import Closing, Worker
from mmcalib.storage.location import allowed_hosts

# On top of what the process itself needs. vLLM's largest image takes 0.7 GB decoded.
MEMORY_BYTES = 4 << 30

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
    """Orders of a chunk for one worker, `done` of them answered; one that is tried `again`."""

    chunk: _Chunk
    at: Sequence[int]
    again: bool = False
    done: int = 0

    def orders(self) -> list[ProbeTask]:
        return [self.chunk.orders[index] for index in self.at]

    def put(self, answers: Sequence[ProbeResult]) -> None:
        for index, answer in zip(self.at[self.done :], answers, strict=False):
            self.chunk.answers[index] = answer
        self.done += len(answers)


class _ProbeWorker(Worker):
    """A worker process that probes items, from the hosts that are allowed when it starts.

    `given` are its unanswered runs in order; the first started at `taken_s`. It said something last
    at `heard_s`, and says that it `started`.
    """

    def __init__(self, look: ProbeFunction, memory_bytes: int, send_s: float) -> None:
        super().__init__("mmcalib.census.worker", memory_bytes, send_s=send_s)
        self.send((look, allowed_hosts()))
        self.given: deque[_Run] = deque()
        self.started = False
        self.heard_s = self.taken_s = time.monotonic()


class LocalPool(Closing):
    """Starts `workers` processes (default: one per CPU) with the first chunk.

    If a worker dies, or answers nothing for `timeout_s`, its items are tried again one by one; the
    one that does it again is `Skipped`. An item that needs more than `memory_bytes` fails. `look`
    must be an importable function.
    """

    def __init__(
        self,
        look: ProbeFunction,
        *,
        workers: int | None = None,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._worker_count = workers or len(os.sched_getaffinity(0))
        self._look, self._timeout_s, self._memory_bytes = look, timeout_s, memory_bytes
        self._workers: list[_ProbeWorker] = []
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
                worker = _ProbeWorker(self._look, self._memory_bytes, self._timeout_s)
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
                worker.heard_s = worker.taken_s = time.monotonic()
            worker.given.append(run)
            worker.send(run.orders())

    def _listen(self) -> None:
        ready = wait([worker.pipe for worker in self._workers], _POLL_S)
        for worker in list(self._workers):
            most_s = self._timeout_s if worker.started else max(_START_S, self._timeout_s)
            if worker.pipe in ready:
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    self._replace(worker, worker.how_it_ended())
                else:
                    self._take_answers(worker, message)
            elif worker.given and time.monotonic() - worker.heard_s > most_s:
                self._replace(worker, f"took more than {most_s:g} s")

    def _take_answers(self, worker: _ProbeWorker, reply: MmcalibError | list[ProbeResult]) -> None:
        if isinstance(reply, MmcalibError):
            raise reply
        worker.started, worker.heard_s = True, time.monotonic()
        run = worker.given[0]
        run.put(reply)
        if run.done == len(run.at):
            worker.given.popleft()
            fitting = count_fitting(run.done, worker.heard_s - worker.taken_s, _CHUNK_S)
            worker.taken_s = worker.heard_s
            self.chunk_items = min(fitting, 2 * self.chunk_items, _LARGEST_CHUNK)

    def _replace(self, worker: _ProbeWorker, why: str) -> None:
        """Queue the items of a lost worker again; those of its first run one by one, and once."""
        self._workers.remove(worker)
        worker.close()
        if not worker.started:
            raise MmcalibError(
                f"a worker process ended before its first item: {why}",
                hint="MMCALIB_DEBUG=1 shows its output",
            )
        if worker.given:
            lost = worker.given.popleft()
            alone = [_Run(lost.chunk, [index], again=True) for index in lost.at[lost.done :]]
            if lost.again:
                (order,) = lost.orders()
                lost.put([ProbeResult(encode_line(Skipped(order.item.path, f"the decoder {why}")))])
                alone = []
            self._waiting.extendleft(reversed([*alone, *worker.given]))
