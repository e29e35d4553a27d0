"""A process that looks at items: `python -m mmcalib.census.executors.worker PIPE PROGRESS LIMIT`.

Chunks come in through the pipe and answers go out, at least twice a second. The number of items
begun stands in shared memory, so that whoever waits knows which one is to blame for a silence.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import resource
import signal
import struct
import sys
import time
import warnings
from multiprocessing.connection import Connection

from mmcalib.census.executors.answering import answer
from mmcalib.census.executors.executor import Look, Order
from mmcalib.census.shapes import Modality
from mmcalib.corpus.item import Held, Item
from mmcalib.errors import MmcalibError

BEGUN = struct.Struct("Q")

# Tuples of built-in types take a tenth of the time that dataclasses take through a pipe.
Packed = tuple[str, Modality | None, Held | None, bool, str]

_FLUSH_S = 0.5
_PR_SET_PDEATHSIG = 1


def main(pipe_fd: int, begun_fd: int, memory_bytes: int) -> None:
    """Serve until the pipe closes; the first message is what looks at an item."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    pipe, begun = Connection(pipe_fd), mmap.mmap(begun_fd, BEGUN.size)
    try:
        look: Look = pipe.recv()
        _limit(memory_bytes)
        warnings.simplefilter("ignore")  # of media; nobody would see them
        # What was imported is not looked through again with each collection.
        gc.freeze()
        number = 0
        while True:
            number = _serve(pipe, begun, number, look, pipe.recv())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _serve(
    pipe: Connection, begun: mmap.mmap, number: int, look: Look, orders: list[Packed]
) -> int:
    answers: list[tuple[str, str]] = []
    flushed = time.monotonic()
    for order in orders:
        number += 1
        BEGUN.pack_into(begun, 0, number)
        try:
            line, seen_version = answer(unpacked(order), look)
            answers.append((line, seen_version))
        except MmcalibError as error:
            pipe.send((type(error), error.message, error.hint))
            continue
        if time.monotonic() - flushed > _FLUSH_S:
            pipe.send(answers)
            answers, flushed = [], time.monotonic()
    pipe.send(answers)
    return number


def _limit(memory_bytes: int) -> None:
    """Let the process have so much address space more than it has now."""
    with open("/proc/self/statm", "rb") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + memory_bytes
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def packed(order: Order) -> Packed:
    """An order as it goes through the pipe."""
    item = order.item
    return item.path, item.declared, item.held, order.whole, order.version


def unpacked(order: Packed) -> Order:
    """The reverse."""
    path, declared, held, whole, version = order
    return Order(Item(path, declared, held), whole, version)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
