"""The whole scan of a tree, in this process: with workers, with what is remembered, and bare."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from PIL import Image

from mmcalib.census.cache import Cache
from mmcalib.census.counter import count_corpus
from mmcalib.census.executor import Executor, ProbeResult, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.census.prober import Prober
from mmcalib.census.worker import probe_task
from mmcalib.corpus.folder import FolderSource
from mmcalib.media.probe import probe
from mmcalib.processes import Closing
from scanning.timing import Timed, in_turns, processor_s

BARE, TWO_BARE, INLINE, ONE, TWO, COLD, WARM = (
    "bare Pillow loop",
    "2 bare Pillow loops",
    "no worker",
    "1 worker",
    "2 workers",
    "2 workers, empty cache",
    "full cache",
)


@dataclass(frozen=True, slots=True)
class Scans:
    """Wall time of whole scans of one tree, and, of one more scan each, seconds on a processor:
    of this process, and of its workers.
    """

    items: int
    timed: dict[str, Timed]
    processor_s: dict[str, tuple[float, float]]

    def rate(self, name: str) -> float:
        """Items per second."""
        return self.items / self.timed[name].best_s


def scans(tree: Path, items: int, rounds: int, *, bare: bool) -> Scans:
    """Raises ValueError where a scan did not measure every item."""
    with tempfile.TemporaryDirectory(prefix="mmcalib-bench-") as scratch:
        full = Path(scratch) / "full.sqlite3"
        _scan(tree, items, LocalPool(probe), Cache(full))
        number = count()
        ways: dict[str, Callable[[], object]] = {
            INLINE: lambda: _scan(tree, items, _NoWorker()),
            ONE: lambda: _scan(tree, items, LocalPool(probe, workers=1)),
            TWO: lambda: _scan(tree, items, LocalPool(probe, workers=2)),
            COLD: lambda: _scan(
                tree, items, LocalPool(probe, workers=2), Cache(Path(scratch, f"{next(number)}.db"))
            ),
            WARM: lambda: _scan(tree, items, LocalPool(probe), Cache(full)),
        }
        if bare:
            ways = {BARE: lambda: _bare(tree), TWO_BARE: lambda: _two_bare(tree), **ways}
        timed = in_turns(ways, rounds, clock=time.perf_counter, least_s=0)
        return Scans(items, timed, {name: _processor_s(way) for name, way in ways.items()})


class _NoWorker(Closing):
    chunks_ahead = 0
    chunk_items = 64

    def submit(self, orders: Sequence[ProbeTask]) -> Sequence[ProbeTask]:
        return orders

    def result(self, ticket: Sequence[ProbeTask]) -> list[ProbeResult]:
        return [probe_task(order, probe) for order in ticket]

    def close(self) -> None: ...


def _processor_s(call: Callable[[], object]) -> tuple[float, float]:
    own, all_s = time.process_time(), processor_s()
    call()
    own = time.process_time() - own
    return own, processor_s() - all_s - own


def _scan(tree: Path, items: int, executor: Executor[Any], cache: Cache | None = None) -> None:
    prober = Prober(executor, cache)
    try:
        taken = count_corpus([FolderSource(tree)], prober, in_order=False)
    finally:
        prober.close()
    if taken.census.items() != items:
        raise ValueError(f"{taken.census.items()} of {items} items were measured")


def _bare(tree: Path, part: int = 0, of: int = 1) -> None:
    for folder, _, names in os.walk(tree):
        for name in names[part::of]:
            _ = Image.open(os.path.join(folder, name)).size


def _two_bare(tree: Path) -> None:
    """What two processes gain on this machine, with nobody to coordinate them."""
    halves = [get_context("fork").Process(target=_bare, args=(tree, part, 2)) for part in (0, 1)]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
