"""Small pictures of items, made where a hostile one costs no more than its share."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from mmcalib.census.executors.executor import Named, ProbeTask
from mmcalib.census.executors.local import LocalPool
from mmcalib.domain.items import Item
from mmcalib.locations.location import Location

# The seconds that one picture may take, and after which no further one is waited for.
_PATIENCE_S = 10.0

# For each of a worker per core. A JPEG is decoded at an eighth of its size; others, and progressive
# ones, of more than some sixty million pixels have no picture.
_MEMORY_BYTES = 384 << 20

_THUMBNAIL = Named("mmcalib.report.html.thumbnail", "thumbnail")
_PICTURE = "data:image/jpeg;"


def pictures(items: Sequence[Item]) -> dict[Item, str]:
    """Data URIs of those items that can be drawn here and now: images and videos on this machine.
    Nothing is fetched from elsewhere.
    """
    drawn = [item for item in dict.fromkeys(items) if _is_here(item)]
    found: dict[Item, str] = {}
    if not drawn:
        return found
    until_s = time.monotonic() + _PATIENCE_S
    workers = min(len(drawn), len(os.sched_getaffinity(0)))
    with LocalPool(
        _THUMBNAIL, workers=workers, timeout_s=_PATIENCE_S, memory_bytes=_MEMORY_BYTES
    ) as pool:
        tickets = [pool.submit([ProbeTask(item)]) for item in drawn]
        for item, ticket in zip(drawn, tickets, strict=True):
            if time.monotonic() > until_s:
                break
            (answer,) = pool.result(ticket)
            if answer.line.startswith(_PICTURE):
                found[item] = answer.line
    return found


def _is_here(item: Item) -> bool:
    file = Location.of(item.path).archive or item.path
    return item.declared in ("image", "video") and os.path.isfile(file)
