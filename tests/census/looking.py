"""Looking at media in this process, as the workers do."""

from __future__ import annotations

from mmcalib.census.executors.answering import answer
from mmcalib.census.executors.executor import Inline, Look, ProbeTask
from mmcalib.census.prober import Prober
from mmcalib.census.versions import version
from mmcalib.domain.items import Item
from mmcalib.domain.seen import Seen, decode
from mmcalib.media.probe import probe
from mmcalib.workflows.read import DECODED_FILES


def prober(look: Look = probe) -> Prober:
    """By headers, and the first files whole, as `mmcalib run` reads a corpus."""
    return Prober(Inline(look), whole=DECODED_FILES)


def looked(item: Item, look: Look = probe) -> Seen:
    """The item by its header and whole."""
    return decode(item.path, answer(ProbeTask(item, True, version(item)), look).line)
