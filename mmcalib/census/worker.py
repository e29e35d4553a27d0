"""Worker process that probes items: `python -m mmcalib.census.worker PIPE LIMIT`.

It receives chunks through the pipe, and answers at least twice a second unless an item hangs.
"""

from __future__ import annotations

import gc
import time
from multiprocessing.connection import Connection

from mmcalib.census.executor import FunctionRef, ProbeFunction, ProbeResult, ProbeTask
from mmcalib.domain.items import Skipped, encode_line
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


_FLUSH_S = 0.5


def serve(pipe: Connection, memory_bytes: int) -> None:
    """Serve the parent, whose first message is the probe function and the allowed hosts."""
    look, hosts = pipe.recv()
    if isinstance(look, FunctionRef):
        look = look.load()
    confine(memory_bytes)
    # Keep imported modules out of every garbage collection.
    gc.freeze()
    pipe.send([])
    with allow_hosts(hosts):
        while True:
            orders: list[ProbeTask] = pipe.recv()
            answers: list[ProbeResult] = []
            flushed = time.monotonic()
            for order in orders:
                if time.monotonic() - flushed > _FLUSH_S:
                    pipe.send(answers)
                    answers, flushed = [], time.monotonic()
                try:
                    answers.append(probe_task(order, look))
                except MmcalibError as error:
                    pipe.send(error)
            pipe.send(answers)


if __name__ == "__main__":
    serve_parent(serve)
