"""Worker process that probes items: `python -m mmcalib.census.worker PIPE PROGRESS LIMIT`.

It receives chunks through the pipe, and answers at least twice a second. It counts the items that
it started in shared memory, so that the parent knows which one hangs.
"""

from __future__ import annotations

import gc
import mmap
import struct
import time
from multiprocessing.connection import Connection

from mmcalib.census.executor import (
    FunctionRef,
    ProbeFunction,
    ProbeResult,
    ProbeTask,
    load_function,
)
from mmcalib.domain.items import ByteSource, Item, Skipped, encode_line
from mmcalib.domain.shapes import Modality
from mmcalib.errors import BUGS, MmcalibError, unexpected
from mmcalib.processes import confine, serve_parent
from mmcalib.storage.location import allow_hosts, is_local, is_settled, is_utf8, item_version
from mmcalib.text import one_line

CHANGED = "changed while being read"
BAD_NAME = "name is not valid UTF-8"

# A file may change during one read, but not during all.
_TRIES = 3


def probe_task(order: ProbeTask, look: ProbeFunction) -> ProbeResult:
    """Probe an item, again if its bytes changed meanwhile. Raises only MmcalibError: for failures
    that affect every item, and for mmcalib's own bugs.
    """
    item = order.item
    if not is_utf8(item.path):
        return ProbeResult(encode_line(Skipped(item.path, BAD_NAME)))
    before = item_version(item) if order.version is None else order.version
    for _ in range(_TRIES):
        now_ns = time.time_ns()
        try:
            seen = look(item)
            if order.whole and not isinstance(seen, str | Skipped) and is_local(item.path):
                from mmcalib.media.decode import decode_check

                if why := decode_check(item, seen.modality):
                    seen = Skipped(item.path, why)
        except MmcalibError:
            raise
        except BUGS as error:
            raise unexpected(error, at=item.path) from error
        except Exception as error:  # noqa: BLE001 - a decoder's unknown failure costs one item
            seen = Skipped(item.path, one_line(f"damaged: {type(error).__name__}: {error}"))
        after = item_version(item)
        if after == before:
            cacheable = order.version is not None and is_settled(after, now_ns)
            line = seen if isinstance(seen, str) else encode_line(seen)
            return ProbeResult(line, after if cacheable else "")
        before = after
    return ProbeResult(encode_line(Skipped(item.path, CHANGED)))


ITEMS_BEGUN = struct.Struct("Q")

# Built-in types pass a pipe ten times faster than dataclasses. Most orders are just a path.
Packed = str | tuple[str, Modality | None, ByteSource | None, bool, str | None]

_FLUSH_S = 0.5


def serve(pipe: Connection, begun_fd: int, memory_bytes: int) -> None:
    """Serve the parent, whose first message is the probe function and the allowed hosts."""
    counter = mmap.mmap(begun_fd, ITEMS_BEGUN.size)
    look, hosts = pipe.recv()
    if isinstance(look, FunctionRef):
        load_function(look.module, look.name)
    confine(memory_bytes)
    # Keep imported modules out of every garbage collection.
    gc.freeze()
    number = 0
    with allow_hosts(hosts):
        while True:
            orders: list[Packed] = pipe.recv()
            answers: list[ProbeResult] = []
            flushed = time.monotonic()
            for order in orders:
                number += 1
                ITEMS_BEGUN.pack_into(counter, 0, number)
                try:
                    answers.append(probe_task(unpack_task(order), look))
                except MmcalibError as error:
                    pipe.send(error)
                    continue
                if time.monotonic() - flushed > _FLUSH_S:
                    pipe.send(answers)
                    answers, flushed = [], time.monotonic()
            pipe.send(answers)


def pack_task(order: ProbeTask) -> Packed:
    """Convert an order to built-in types for the pipe."""
    item, whole, version = order
    if version is None and item.declared is None and item.byte_source is None and not whole:
        return item.path
    return item.path, item.declared, item.byte_source, whole, version


def unpack_task(order: Packed) -> ProbeTask:
    if isinstance(order, str):
        return ProbeTask(Item(order))
    path, declared, held, whole, version = order
    return ProbeTask(Item(path, declared, held), whole, version)


if __name__ == "__main__":
    serve_parent(serve)
