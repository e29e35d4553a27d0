"""The pool of local worker processes that probe items."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from mmcalib.census.executor import TIMEOUT_S, ProbeFunction, ProbeResult, ProbeTask
from mmcalib.domain.items import Skipped, encode_line
from mmcalib.errors import MmcalibError
from mmcalib.processes import Closing, Worker, WorkerFailed
from mmcalib.storage.location import allowed_hosts

# On top of what the process itself needs. vLLM's largest image takes 0.7 GB decoded.
MEMORY_BYTES = 4 << 30

# Allows a busy machine to import packages from a network drive.
_START_S = 60.0

# Short enough to write the cache every second, long enough to cost the parent little per item.
_CHUNK_S = 0.1
_FIRST_CHUNK, _LARGEST_CHUNK = 64, 256


class LocalPool(Closing):
    """Starts up to `workers` processes (default: one per CPU), each with a thread of its own.

    If a worker dies, or answers nothing for `timeout_s`, its items are tried again one by one; the
    one that does it again is `Skipped`. An item that needs more than `memory_bytes` fails. `look`
    must be importable; it may read from the hosts that are allowed when its worker starts.
    """

    def __init__(
        self,
        look: ProbeFunction,
        *,
        workers: int | None = None,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        worker_count = workers or len(os.sched_getaffinity(0))
        self._look, self._timeout_s, self._memory_bytes = look, timeout_s, memory_bytes
        # By thread: a worker ends with the thread that started it.
        self._workers: dict[int, Worker] = {}
        self._closed = False
        self._threads = ThreadPoolExecutor(worker_count)
        self.chunks_ahead, self.chunk_items = 2 * worker_count, _FIRST_CHUNK

    def submit(self, orders: Sequence[ProbeTask]) -> Callable[[], list[ProbeResult]]:
        return self._threads.submit(copy_context().run, self._probe, orders).result

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self._workers.values()):
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers.values():
            worker.close()

    def _probe(self, orders: Sequence[ProbeTask]) -> list[ProbeResult]:
        answers, _ = self._try(orders)
        for order in orders[len(answers) :]:
            answer, why = self._try([order])
            skipped = Skipped(order.item.path, f"the decoder {why}")
            answers += answer or [ProbeResult(encode_line(skipped))]
        return answers

    def _try(self, orders: Sequence[ProbeTask]) -> tuple[list[ProbeResult], str]:
        """Return a worker's answers, and what ended it if it did not give all."""
        worker = self._workers.get(threading.get_ident()) or self._start_worker()
        answers: list[ProbeResult] = []
        began_s = time.monotonic()
        worker.send(orders)
        try:
            while len(answers) < len(orders):
                reply = worker.receive(self._timeout_s)
                if isinstance(reply, MmcalibError):
                    raise reply
                answers += reply
        except WorkerFailed as error:
            return answers, str(error)
        finally:
            if len(answers) < len(orders):
                self._workers.pop(threading.get_ident()).close()
        fitting = int(len(orders) * _CHUNK_S / max(time.monotonic() - began_s, 1e-6))
        self.chunk_items = max(1, min(fitting, 2 * self.chunk_items, _LARGEST_CHUNK))
        return answers, ""

    def _start_worker(self) -> Worker:
        worker = Worker("mmcalib.census.worker", self._memory_bytes, send_s=self._timeout_s)
        self._workers[threading.get_ident()] = worker
        if self._closed:
            worker.kill()
        worker.send((self._look, allowed_hosts()))
        try:
            worker.receive(max(_START_S, self._timeout_s))
        except WorkerFailed as error:
            raise MmcalibError(
                f"a worker process {error} before its first item",
                hint="MMCALIB_DEBUG=1 shows its output",
            ) from error
        return worker
