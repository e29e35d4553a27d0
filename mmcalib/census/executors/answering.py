"""One order answered, in whatever process does it."""

from __future__ import annotations

import time

from mmcalib.census.executors.executor import Look, ProbeResult, ProbeTask
from mmcalib.census.versions import in_unicode, is_settled, version
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.seen import Seen, encode
from mmcalib.errors import BUGS, MmcalibError, unexpected
from mmcalib.locations.location import is_here
from mmcalib.wording import one_line

CHANGING = "changes while it is read"
NAMELESS = "its name is not valid UTF-8"

# A file may be replaced under a reader once, not every time.
_TRIES = 3


def answer(order: ProbeTask, look: Look) -> ProbeResult:
    """What is seen of bytes that did not change meanwhile. Raises MmcalibError alone: for what ends
    every other item too, and for a bug of ours, which is no damage of the file.
    """
    item = order.item
    if not in_unicode(item.path):
        return ProbeResult(encode(Skipped(item.path, NAMELESS)))
    before = version(item) if order.version is None else order.version
    for _ in range(_TRIES):
        now_ns = time.time_ns()
        try:
            seen = look(item)
            if order.whole and not isinstance(seen, str):
                seen = _whole(item, seen)
        except MmcalibError:
            raise
        except BUGS as error:
            raise unexpected(error, at=item.path) from error
        except Exception as error:  # noqa: BLE001 - a decoder's unknown failure costs one item
            seen = Skipped(item.path, one_line(f"damaged: {type(error).__name__}: {error}"))
        after = version(item)
        if after == before:
            kept = order.version is not None and is_settled(after, now_ns)
            line = seen if isinstance(seen, str) else encode(seen)
            return ProbeResult(line, after if kept else "")
        before = after
    return ProbeResult(encode(Skipped(item.path, CHANGING)))


def _whole(item: Item, seen: Seen) -> Seen:
    from mmcalib.media.decode import decode_check

    if isinstance(seen, Skipped) or not is_here(item.path):
        return seen
    why = decode_check(item, seen.modality)
    return seen if why is None else Skipped(item.path, why)
