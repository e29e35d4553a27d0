"""Several processes of this machine that look at items, each of which may die of one."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from mmcalib.census.executors.executor import Answer, Look, Order, Ticket
from mmcalib.census.executors.process import Process
from mmcalib.census.executors.worker import packed
from mmcalib.census.outcome import encode
from mmcalib.closing import Closing
from mmcalib.corpus.item import Skipped
from mmcalib.errors import MmcalibError

# The longest that a real file took: a video of two hours without an index, from a network drive.
TIMEOUT_S = 30.0

# Above what the process needs itself. The largest image that vLLM opens takes 0.7 GB decoded.
MEMORY_BYTES = 4 << 30

# Who else could kill a worker (the kernel, short of memory) does not do it twice for one item.
_STRIKES = 2

_POLL_S = 0.25


@dataclass(slots=True, eq=False)
class _Chunk:
    """Handed in, and answered so far; `None` where not."""

    orders: Sequence[Order]
    answers: list[Answer | None]
    left: int


@dataclass(frozen=True, slots=True)
class _Place:
    """One order of a chunk; `strikes` processes have ended over it."""

    chunk: _Chunk
    index: int
    strikes: int = 0

    @property
    def order(self) -> Order:
        return self.chunk.orders[self.index]

    def put(self, answer: Answer) -> None:
        self.chunk.answers[self.index] = answer
        self.chunk.left -= 1


@dataclass(slots=True, eq=False)
class _Worker:
    """`given` are the places that it has not answered, in its order."""

    process: Process
    given: deque[_Place] = field(default_factory=deque)
    messages: int = 0
    answered: int = 0
    begun: int = 0
    since: float = field(default_factory=time.monotonic)


class LocalPool(Closing):
    """Spawns `workers` processes (default: one per CPU) with the first chunk.

    An item that takes longer than `timeout_s`, or after which a worker is dead, twice each, is
    `Skipped`; one that needs more than `memory_bytes` fails by itself. `look` must be a function
    that can be imported.
    """

    def __init__(
        self,
        look: Look,
        *,
        workers: int | None = None,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._wanted = workers or len(os.sched_getaffinity(0))
        self._look, self._timeout_s, self._memory_bytes = look, timeout_s, memory_bytes
        self._workers: list[_Worker] = []
        self._waiting: deque[list[_Place]] = deque()
        self.ahead, self.chunk_items = 2 * self._wanted, 64

    def submit(self, orders: Sequence[Order]) -> Ticket:
        chunk = _Chunk(orders, [None] * len(orders), len(orders))
        self._waiting.append([_Place(chunk, index) for index in range(len(orders))])
        self._hand_out()
        return chunk

    def result(self, ticket: Ticket) -> list[Answer]:
        """Raises MmcalibError where no item can be looked at, whichever it is."""
        assert isinstance(ticket, _Chunk)
        while ticket.left:
            self._hand_out()
            self._listen()
        return [answer for answer in ticket.answers if answer is not None]

    def close(self) -> None:
        for worker in self._workers:
            worker.process.close()
        self._workers.clear()
        self._waiting.clear()

    def _hand_out(self) -> None:
        """Give everybody one chunk to do and one to go on with."""
        while self._waiting:
            worker = min(self._workers, key=lambda worker: worker.messages, default=None)
            if len(self._workers) < self._wanted and (worker is None or worker.messages):
                worker = _Worker(Process(self._look, self._memory_bytes))
                self._workers.append(worker)
            if worker is None or worker.messages > 1:
                return
            places = self._waiting.popleft()
            if not worker.given:
                worker.since = time.monotonic()
            worker.given += places
            worker.messages += 1
            with contextlib.suppress(OSError):  # it is dead, and `_listen` finds it so
                worker.process.pipe.send([packed(place.order) for place in places])

    def _listen(self) -> None:
        pipes = {worker.process.pipe: worker for worker in self._workers}
        for pipe in wait(list(pipes), _POLL_S):
            worker = pipes[pipe]  # type: ignore[index]
            try:
                said = worker.process.pipe.recv()
            except (EOFError, OSError):
                self._lost(worker, worker.process.how_it_ended())
                continue
            self._heard(worker, said)
        now = time.monotonic()
        for worker in list(self._workers):
            begun = worker.process.begun()
            if begun != worker.begun or not worker.given:
                worker.begun, worker.since = begun, now
            elif now - worker.since > self._timeout_s and not worker.process.pipe.poll():
                self._lost(worker, f"took more than {self._timeout_s:g} s")

    def _heard(self, worker: _Worker, said: object) -> None:
        if isinstance(said, tuple):
            kind, message, hint = said
            raise kind(message, hint=hint)
        assert isinstance(said, list)
        for answer in said:
            worker.given.popleft().put(Answer(*answer))
        worker.answered += len(said)
        worker.messages = len({id(place.chunk) for place in worker.given})

    def _lost(self, worker: _Worker, why: str) -> None:
        """Blame the item that was begun, and have the others done again."""
        at_work = worker.process.begun() - worker.answered - 1
        self._workers.remove(worker)
        worker.process.close()
        places = list(worker.given)
        if at_work < 0 and not worker.answered and worker.process.never_began():
            raise MmcalibError(
                f"a process that reads media ended before its first item: {why}",
                hint="MMCALIB_DEBUG=1 shows what it said",
            )
        if 0 <= at_work < len(places):
            place = places[at_work]
            struck = _Place(place.chunk, place.index, place.strikes + 1)
            del places[at_work]
            if struck.strikes < _STRIKES:
                self._waiting.appendleft([struck])
            else:
                place.put(Answer(encode(Skipped(place.order.item.path, f"a decoder {why}"))))
        if places:
            self._waiting.appendleft(places)
