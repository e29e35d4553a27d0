"""A process that looks at items: `python -m mmcalib.census.executors.worker PIPE PROGRESS LIMIT`.

Chunks come in through the pipe and answers go out, at least twice a second. The number of items
begun stands in shared memory, so that whoever waits knows which one is to blame for a silence.
"""

from __future__ import annotations

import gc
import mmap
import struct
import sys
import time
from multiprocessing.connection import Connection

from mmcalib.census.executors.answering import answer
from mmcalib.census.executors.executor import Look, ProbeResult, ProbeTask
from mmcalib.domain.items import ByteSource, Item
from mmcalib.domain.shapes import Modality
from mmcalib.errors import MmcalibError
from mmcalib.processes.confine import belong_to_parent, confine

BEGUN = struct.Struct("Q")

# Built-in types take a tenth of the time that dataclasses take through a pipe; most orders are for
# a file of which no more is said than its path, and most answers are a line.
Packed = str | tuple[str, Modality | None, ByteSource | None, bool, str | None]
PackedAnswer = str | tuple[str, str]

_FLUSH_S = 0.5


def main(pipe_fd: int, begun_fd: int, memory_bytes: int) -> None:
    """Serve until the pipe closes; the first message is what looks at an item."""
    belong_to_parent()
    pipe, begun = Connection(pipe_fd), mmap.mmap(begun_fd, BEGUN.size)
    try:
        look: Look = pipe.recv()
        confine(memory_bytes)
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


def packed(order: ProbeTask) -> Packed:
    """An order as it goes through the pipe."""
    item, whole, version = order
    if version is None and item.declared is None and item.held is None and not whole:
        return item.path
    return item.path, item.declared, item.held, whole, version


def unpacked(order: Packed) -> ProbeTask:
    """The reverse."""
    if isinstance(order, str):
        return ProbeTask(Item(order))
    path, declared, held, whole, version = order
    return ProbeTask(Item(path, declared, held), whole, version)


def packed_answer(answer: ProbeResult) -> PackedAnswer:
    """An answer as it goes through the pipe."""
    return (answer.line, answer.version) if answer.version else answer.line


def unpacked_answer(answer: PackedAnswer) -> ProbeResult:
    """The reverse."""
    return ProbeResult(answer) if isinstance(answer, str) else ProbeResult(*answer)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
