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
from mmcalib.census.executors.executor import Answer, Look, Order
from mmcalib.census.shapes import Modality
from mmcalib.corpus.item import Held, Item
from mmcalib.errors import MmcalibError

BEGUN = struct.Struct("Q")

# Built-in types take a tenth of the time that dataclasses take through a pipe; most orders are for
# a file of which no more is said than its path, and most answers are a line.
Packed = str | tuple[str, Modality | None, Held | None, bool, str | None]
PackedAnswer = str | tuple[str, str]

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
    answers: list[PackedAnswer] = []
    flushed = time.monotonic()
    for order in orders:
        number += 1
        BEGUN.pack_into(begun, 0, number)
        try:
            answers.append(packed_answer(answer(unpacked(order), look)))
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
    item, whole, version = order
    if version is None and item.declared is None and item.held is None and not whole:
        return item.path
    return item.path, item.declared, item.held, whole, version


def unpacked(order: Packed) -> Order:
    """The reverse."""
    if isinstance(order, str):
        return Order(Item(order))
    path, declared, held, whole, version = order
    return Order(Item(path, declared, held), whole, version)


def packed_answer(answer: Answer) -> PackedAnswer:
    """An answer as it goes through the pipe."""
    return (answer.line, answer.version) if answer.version else answer.line


def unpacked_answer(answer: PackedAnswer) -> Answer:
    """The reverse."""
    return Answer(answer) if isinstance(answer, str) else Answer(*answer)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
