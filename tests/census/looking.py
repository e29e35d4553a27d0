"""Looking at media in this process, as the workers do."""

from __future__ import annotations

from collections.abc import Sequence

from mmcalib.census.executor import Look, ProbeResult, ProbeTask
from mmcalib.census.prober import Prober
from mmcalib.census.worker import answer
from mmcalib.domain.items import Item, Seen, decode
from mmcalib.media.probe import probe
from mmcalib.processes import Closing
from mmcalib.storage.location import version
from mmcalib.workflows.corpus import DECODED_FILES


class Inline(Closing):
    """Looks in this process, when it is asked for the result."""

    ahead = 0
    chunk_items = 64

    def __init__(self, look: Look) -> None:
        self._look = look

    def submit(self, orders: Sequence[ProbeTask]) -> Sequence[ProbeTask]:
        return orders

    def result(self, ticket: Sequence[ProbeTask]) -> list[ProbeResult]:
        return [answer(order, self._look) for order in ticket]

    def close(self) -> None: ...


def seen_now(prober: Prober, item: Item) -> list[str]:
    """The line of the item, by this prober."""
    ((_, lines),) = prober.each([(None, [item])])
    return lines


def prober(look: Look = probe) -> Prober:
    """By headers, and the first files whole, as `mmcalib run` reads a corpus."""
    return Prober(Inline(look), whole=DECODED_FILES)


def looked(item: Item, look: Look = probe) -> Seen:
    """The item by its header and whole."""
    return decode(item.path, answer(ProbeTask(item, True, version(item)), look).line)
