"""A process that reads archives for its parent: `python -m mmcalib.corpus.reader PIPE LIMIT`.

A few kilobytes can stand for gigabytes, so tars, zips and tables are read where that has a bound.
What was found goes out in lists, as it comes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from mmcalib.corpus.archives import End, Found, What
from mmcalib.corpus.source import Source
from mmcalib.domain.items import Item, carried_bytes
from mmcalib.errors import MmcalibError
from mmcalib.processes import belong_to_parent, confine
from mmcalib.text import MIB

# A list is sent when it carries so much, holds so many, or is so old.
_FULL_BYTES = MIB
_FULL = 64
_FLUSH_S = 0.2


def main(pipe_fd: int, memory_bytes: int) -> None:
    """Serve until the pipe closes."""
    belong_to_parent()
    confine(memory_bytes)
    pipe = Connection(pipe_fd)
    try:
        while True:
            source, what = pipe.recv()
            for said in _read(source, what):
                pipe.send(said)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _read(source: Source, what: What) -> Iterator[list[Found] | End]:
    found: list[Found] = []
    carried, sent_s = 0, time.monotonic()
    end = End()
    try:
        for one in source.items() if what == "items" else source.prompts():
            found.append(one)
            carried += carried_bytes(one) if isinstance(one, Item) else 0
            full = len(found) >= _FULL or carried >= _FULL_BYTES
            if full or time.monotonic() - sent_s > _FLUSH_S:
                yield found
                found, carried, sent_s = [], 0, time.monotonic()
    except MmcalibError as error:
        end = End(failure=(type(error), error.message, error.hint))
    except Exception as error:  # noqa: BLE001 - whatever a library raises costs one archive
        from mmcalib.media.failure import reason

        end = End(reason=reason(error))
    yield found
    yield end


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
