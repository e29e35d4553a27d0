"""Looking at media in this process, as the workers do."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mmcalib.census.counter import Prober
from mmcalib.census.executor import ProbeFunction, ProbeResult, ProbeTask
from mmcalib.census.worker import probe_task
from mmcalib.domain.items import Item, ProbedMedia, decode_line
from mmcalib.media.probe import probe
from mmcalib.processes import Closing
from mmcalib.storage.location import item_version
from mmcalib.workflows.corpus import DECODED_FILES

OLD_NS = 1_700_000_000_123_456_789


def orders(folder: Path, *names: str) -> list[ProbeTask]:
    """Probes of files that are made, and made old, so that what is seen of them is kept."""
    for name in names:
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, ns=(OLD_NS, OLD_NS))
    items = [Item(str(folder / name)) for name in names]
    return [ProbeTask(item, version=item_version(item)) for item in items]


class Inline(Closing):
    """Looks in this process, when it is asked for the result."""

    chunks_ahead = 0
    chunk_items = 64

    def __init__(self, look: ProbeFunction) -> None:
        self._look = look

    def submit(self, orders: Sequence[ProbeTask]) -> Callable[[], list[ProbeResult]]:
        return lambda: [probe_task(order, self._look) for order in orders]

    def close(self) -> None: ...


def seen_now(prober: Prober, item: Item) -> list[str]:
    """The line of the item, by this prober."""
    ((_, lines),) = prober.probe_batches([(None, [item])])
    return lines


def prober(look: ProbeFunction = probe) -> Prober:
    """Probe by headers, and the first files whole, as `mmcalib run` reads a corpus."""
    return Prober(Inline(look), whole=DECODED_FILES)


def looked(item: Item, look: ProbeFunction = probe) -> ProbedMedia:
    """The item by its header and whole."""
    return decode_line(item.path, probe_task(ProbeTask(item, True, item_version(item)), look).line)
