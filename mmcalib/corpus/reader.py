"""Child process that reads archives: `python -m mmcalib.corpus.reader PIPE LIMIT`.

A few kilobytes can unpack to gigabytes, so this process has a memory limit. It sends its records in
lists, as it finds them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from mmcalib.corpus.archives import Record, RecordKind
from mmcalib.corpus.chat import Source
from mmcalib.domain.items import Item, loaded_bytes
from mmcalib.errors import MmcalibError
from mmcalib.media.failure import error_reason
from mmcalib.processes import confine, serve_parent
from mmcalib.storage.location import allow_hosts
from mmcalib.text import MIB

# A list is sent when it reaches this size, length or age.
_FULL_BYTES = MIB
_FULL = 64
_FLUSH_S = 0.2


def serve(pipe: Connection, memory_bytes: int) -> None:
    """Serve the parent. A message is a source, what to read from it, and the allowed hosts."""
    confine(memory_bytes)
    while True:
        source, what, hosts = pipe.recv()
        with allow_hosts(hosts):
            for reply in _read(source, what):
                pipe.send(reply)


def _read(source: Source, what: RecordKind) -> Iterator[list[Record] | str | MmcalibError]:
    """Yield lists of records, then why reading stopped early (empty if it did not) or an error."""
    end: str | MmcalibError = ""
    records: list[Record] = []
    carried, sent_s = 0, time.monotonic()
    try:
        for record in source.items() if what == "items" else source.prompts():
            records.append(record)
            carried += loaded_bytes(record) if isinstance(record, Item) else 0
            full = len(records) >= _FULL or carried >= _FULL_BYTES
            if full or time.monotonic() - sent_s > _FLUSH_S:
                yield records
                records, carried, sent_s = [], 0, time.monotonic()
    except MmcalibError as error:
        end = error
    except Exception as error:  # noqa: BLE001 - any error of a library costs only this archive
        end = error_reason(error)
    yield records
    yield end


if __name__ == "__main__":
    serve_parent(serve)
