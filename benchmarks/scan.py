"""How fast a folder of images is scanned, beside a bare loop over Pillow.

    python benchmarks/scan.py [--media DIR] [--items N] [--rounds N] [--out FILE]

All ways take turns on the same files, which the system has in memory. Needs neither vLLM nor a
GPU. Exits 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402

from mmcalib.census.cache import Cache  # noqa: E402
from mmcalib.census.counter import Prober, count_corpus  # noqa: E402
from mmcalib.census.pool import LocalPool  # noqa: E402
from mmcalib.corpus.folder import FolderSource  # noqa: E402
from mmcalib.domain.items import Item  # noqa: E402
from mmcalib.domain.shapes import ImageShape  # noqa: E402
from mmcalib.media.probe import probe  # noqa: E402

FOLDER_ITEMS = 1_000
BARE, OURS, ONE, TWO = "bare Pillow loop", "headers, no scan", "1 worker", "2 workers"
WARM = "full cache"
# What the tool promises: how many times another way's speed, and items a second.
LEAST_OF = {(OURS, BARE): 0.8, (TWO, ONE): 1.7}
LEAST_WARM_PER_S = 100_000


def tree_of(images: Sequence[Path], items: int, scratch: Path) -> Path:
    """Make a tree of so many hard links to copies of the images."""
    tree = scratch / "tree"
    copies = [scratch / f"{number}{path.suffix}" for number, path in enumerate(images)]
    for path, copy in zip(images, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    for number in range(items):
        folder, copy = tree / f"{number // FOLDER_ITEMS:05d}", copies[number % len(copies)]
        folder.mkdir(parents=True, exist_ok=True)
        os.link(copy, folder / f"{number:08d}{copy.suffix}")
    return tree


def scan(tree: Path, items: int, pool: LocalPool, cache: Cache | None = None) -> None:
    prober = Prober(pool, cache)
    try:
        taken = count_corpus([FolderSource(tree)], prober, in_order=False)
    finally:
        prober.close()
    if taken.census.items() != items:
        raise ValueError(f"{taken.census.items()} of {items} items were measured")


def each(read: Callable[[str], object], tree: Path) -> None:
    for folder, _, names in os.walk(tree):
        for name in names:
            read(os.path.join(folder, name))


def best_s(tree: Path, items: int, rounds: int, full: Path) -> dict[str, float]:
    """Time each way in every round, another one first each time, and return the best of each."""
    ways: dict[str, Callable[[], object]] = {
        BARE: lambda: each(lambda path: Image.open(path).size, tree),
        OURS: lambda: each(lambda path: probe(Item(path)), tree),
        ONE: lambda: scan(tree, items, LocalPool(probe, workers=1)),
        TWO: lambda: scan(tree, items, LocalPool(probe, workers=2)),
        WARM: lambda: scan(tree, items, LocalPool(probe), Cache(full)),
    }
    ways[WARM]()
    names, found = list(ways), defaultdict[str, list[float]](list)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            ways[name]()
            found[name].append(time.perf_counter() - began)
    return {name: min(found[name]) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--media", type=Path, default=ROOT / "sample", help="real files (sample)")
    parser.add_argument("--items", type=int, default=50_000, help="links that are scanned (50,000)")
    parser.add_argument("--rounds", type=int, default=7, help="of which the best counts (7)")
    parser.add_argument("--out", type=Path, help="write the report to this file as well")
    given = parser.parse_args()
    if not given.media.is_dir():
        sys.exit(f"no such folder: {given.media}; `make demo` fetches the sample, or --media DIR")
    # As in a worker.
    warnings.simplefilter("ignore")
    found = (item for item in FolderSource(given.media).items() if isinstance(item, Item))
    images = [Path(item.path) for item in found if isinstance(probe(item), ImageShape)]
    with tempfile.TemporaryDirectory(prefix="mmcalib-bench-") as name:
        scratch = Path(name)
        tree = tree_of(images, given.items, scratch)
        best = best_s(tree, given.items, given.rounds, scratch / "full.sqlite3")
    rates = {way: given.items / seconds for way, seconds in best.items()}
    missed = [
        f"{way} is {rates[way] / rates[other]:.2f}× {other}, not {least}×"
        for (way, other), least in LEAST_OF.items()
        if rates[way] / rates[other] < least
    ]
    if rates[WARM] < LEAST_WARM_PER_S:
        missed.append(f"{WARM}: {rates[WARM]:,.0f} items/s, not {LEAST_WARM_PER_S:,}")
    lines = [
        "# How fast a corpus is scanned\n\n`python benchmarks/scan.py`\n",
        f"{given.items:,} links to images, in memory, on {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}, wall time, best of {given.rounds} rounds in turns.\n",
        "| | items/s | of the bare loop |\n|---|--:|--:|",
        *(f"| {way} | {rate:,.0f} | {rate / rates[BARE]:.2f}× |" for way, rate in rates.items()),
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
