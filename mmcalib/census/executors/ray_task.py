"""What runs in a Ray worker process: a task that looks at a chunk through a pool of its own."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from typing import NamedTuple

from mmcalib.census.executors import ray_watch
from mmcalib.census.executors.executor import Look, ProbeResult, ProbeTask
from mmcalib.census.executors.local import LocalPool
from mmcalib.census.executors.worker import Packed, PackedAnswer, packed_answer, unpacked
from mmcalib.errors import MmcalibError
from mmcalib.locations.location import Location
from mmcalib.processes.environment import safe_environment

# A pool that waits longer than a slow driver takes between two chunks has been left behind.
_IDLE_S = 10.0


class Terms(NamedTuple):
    """What a pool is made with."""

    look: Look
    timeout_s: float
    memory_bytes: int


class Told(NamedTuple):
    """What a task returns after so many seconds; `unseen` are files that were there when asked for,
    and not on `node`.
    """

    answers: list[PackedAnswer]
    node: str
    seconds: float = 0.0
    unseen: Sequence[str] = ()
    failure: tuple[type[MmcalibError], str, str] | None = None


def looked_at(chunk: list[Packed], terms: Terms) -> Told:
    """The task, in a Ray worker process."""
    node = socket.gethostname()
    orders = [unpacked(order) for order in chunk]
    began_s = time.monotonic()
    try:
        answers = _looking().ask(orders, terms).result()
    except MmcalibError as error:
        return Told([], node, failure=(type(error), error.message, error.hint))
    seconds = time.monotonic() - began_s
    unseen = [
        _file(order)
        for order, answer in zip(orders, answers, strict=True)
        if order.version != "" and not answer.version and not os.path.lexists(_file(order))
    ]
    return Told([packed_answer(answer) for answer in answers], node, seconds, unseen)


def _file(order: ProbeTask) -> str:
    """What must lie on the node; of a member, its archive."""
    location = Location.of(order.item.path)
    return location.archive or location.path


class Looking:
    """The thread of a Ray worker process that owns a pool from task to task.

    Processes of a pool die with the thread that began them, and Ray does not promise to run tasks
    in one thread. Nobody says when the last task was, so the pool ends when nothing is asked.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[list[ProbeTask], Terms, Future[list[ProbeResult]]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, orders: list[ProbeTask], terms: Terms) -> Future[list[ProbeResult]]:
        future: Future[list[ProbeResult]] = Future()
        self._asked.put((orders, terms, future))
        return future

    def _run(self) -> None:
        _watched()
        while True:
            orders, terms, future = self._asked.get()
            with contextlib.suppress(queue.Empty), _pool(terms) as pool:
                while True:
                    try:
                        future.set_result(pool.result(pool.submit(orders)))
                    except BaseException as error:  # noqa: BLE001 - the task raises it
                        future.set_exception(error)
                        break
                    orders, asked, future = self._asked.get(timeout=_IDLE_S)
                    if asked != terms:
                        self._asked.put((orders, asked, future))
                        break


def _watched() -> None:
    """It dies with the thread that calls this."""
    command = [sys.executable, "-P", ray_watch.__file__, str(os.getpid())]
    with contextlib.suppress(OSError):
        env = safe_environment(os.environ, sys.path)
        subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env)


def _pool(terms: Terms) -> LocalPool:
    return LocalPool(
        terms.look, workers=1, timeout_s=terms.timeout_s, memory_bytes=terms.memory_bytes
    )


@cache
def _looking() -> Looking:
    return Looking()
