"""How fast a corpus is scanned, beside the bare libraries that read its files.

    python benchmarks/scan.py [--media DIR] [--items N] [--rounds N] [--out FILE]

All ways take turns on the same files, which the system has in memory. Needs neither vLLM nor a
GPU. Exits 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import av  # noqa: E402
import soundfile  # noqa: E402
from PIL import Image  # noqa: E402

from mmcalib.census.cache import Cache  # noqa: E402
from mmcalib.census.counter import count_corpus  # noqa: E402
from mmcalib.census.pool import LocalPool  # noqa: E402
from mmcalib.census.prober import Prober  # noqa: E402
from mmcalib.corpus.folder import FolderSource  # noqa: E402
from mmcalib.domain.items import Item  # noqa: E402
from mmcalib.domain.shapes import Modality, Shape  # noqa: E402
from mmcalib.media.probe import probe  # noqa: E402

# What the tool promises.
LEAST_OF_BARE, IMAGE_DECODES = 0.8, 100
LEAST_WARM_PER_S, LEAST_SPEEDUP = 100_000, 1.7
# Files of a format, and seconds that a call takes at least, so that the clock's grain is nothing.
MOST_FILES, LEAST_S = 20, 0.05
FOLDER_ITEMS = 1_000
BARE, ONE, TWO, WARM = "bare Pillow loop", "1 worker", "2 workers", "full cache"

Times = Mapping[str, float]


def _pillow_decode(path: str) -> None:
    with Image.open(path) as image:
        image.load()


def _pyav(path: str) -> None:
    with av.open(path) as container:
        _ = [(one.codec_context.width, one.frames) for one in container.streams.video]


def _pyav_decode(path: str) -> None:
    with av.open(path) as container:
        _ = sum(1 for _ in container.decode(video=0))


# The bare library that reads a header, and one that decodes all of the file.
READERS: dict[Modality, tuple[Callable[[str], object], Callable[[str], object]]] = {
    "image": (lambda path: Image.open(path).size, _pillow_decode),
    "video": (_pyav, _pyav_decode),
    "audio": (soundfile.info, lambda path: soundfile.read(path, dtype="float32")),
}


def best_s(
    ways: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]
) -> Times:
    """Time each way in every round, another one first each time, and return the best of each."""
    names, found = list(ways), defaultdict[str, list[float]](list)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            calls, began = 0, clock()
            while not calls or clock() - began < LEAST_S:
                ways[name]()
                calls += 1
            found[name].append((clock() - began) / calls)
    return {name: min(seconds) for name, seconds in found.items()}


def files_by_format(media: Path) -> dict[tuple[Modality, str], list[str]]:
    """Readable files of the folder by modality and suffix, at most so many of each."""
    found: dict[tuple[Modality, str], list[str]] = defaultdict(list)
    for item in FolderSource(media).items():
        shape = probe(item) if isinstance(item, Item) else item
        if isinstance(shape, Shape):
            found[shape.modality, Path(item.path).suffix[1:].lower()].append(item.path)
    return {key: paths[:MOST_FILES] for key, paths in sorted(found.items())}


def headers(modality: Modality, paths: Sequence[str], rounds: int) -> Times:
    """Seconds of the processor that each reader takes for the files."""
    bare, decode = READERS[modality]
    own: Callable[[str], object] = lambda path: probe(Item(path))  # noqa: E731
    ways = {"mmcalib": own, "bare": bare, "decode": decode}
    loops = {name: partial(_each, read, paths) for name, read in ways.items()}
    return best_s(loops, rounds, time.process_time)


def _each(read: Callable[[str], object], paths: Sequence[str]) -> None:
    for path in paths:
        read(path)


def scans(images: Sequence[str], items: int, rounds: int, scratch: Path) -> Times:
    """Wall seconds of whole scans of so many hard links to the images."""
    tree = scratch / "tree"
    for number in range(items):
        folder = tree / f"{number // FOLDER_ITEMS:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        at = number % len(images)
        source = scratch / f"{at}{Path(images[at]).suffix}"
        if number < len(images):
            source.write_bytes(Path(images[at]).read_bytes())
        os.link(source, folder / f"{number:08d}{source.suffix}")
    full = scratch / "full.sqlite3"
    _scan(tree, items, LocalPool(probe), Cache(full))
    ways: dict[str, Callable[[], object]] = {
        BARE: lambda: _each(READERS["image"][0], [str(p) for p in tree.rglob("*.*")]),
        ONE: lambda: _scan(tree, items, LocalPool(probe, workers=1)),
        TWO: lambda: _scan(tree, items, LocalPool(probe, workers=2)),
        WARM: lambda: _scan(tree, items, LocalPool(probe), Cache(full)),
    }
    return best_s(ways, rounds, time.perf_counter)


def _scan(tree: Path, items: int, pool: LocalPool, cache: Cache | None = None) -> None:
    prober: Any = Prober(pool, cache)
    try:
        taken = count_corpus([FolderSource(tree)], prober, in_order=False)
    finally:
        prober.close()
    if taken.census.items() != items:
        raise ValueError(f"{taken.census.items()} of {items} items were measured")


def targets(read: Mapping[tuple[Modality, str], Times], whole: Times, items: int) -> Iterator[str]:
    """Name every target that is missed."""
    images = [times for (modality, _), times in read.items() if modality == "image"]
    own, bare, decode = (
        sum(times[name] for times in images) for name in ("mmcalib", "bare", "decode")
    )
    if bare / own < LEAST_OF_BARE:
        yield f"images: {bare / own:.0%} of bare Pillow's speed, not {LEAST_OF_BARE:.0%}"
    if decode / own < IMAGE_DECODES:
        yield f"images: full decode takes {decode / own:.0f}×, not {IMAGE_DECODES}×"
    if whole[ONE] / whole[TWO] < LEAST_SPEEDUP:
        yield f"2 workers are {whole[ONE] / whole[TWO]:.2f}× 1, not {LEAST_SPEEDUP}×"
    if items / whole[WARM] < LEAST_WARM_PER_S:
        yield f"full cache: {items / whole[WARM]:,.0f} items/s, not {LEAST_WARM_PER_S:,}"


def page(read: Mapping[tuple[Modality, str], Times], whole: Times, items: int) -> Iterator[str]:
    yield "# How fast a corpus is scanned\n\n`python benchmarks/scan.py`\n"
    yield f"On {os.cpu_count()} CPUs, Python {platform.python_version()}, files in memory."
    yield "Seconds of the processor for one header; a decode is of the same library.\n"
    yield "| modality | format | share of bare speed | decode takes |\n|---|---|--:|--:|"
    for (modality, form), times in read.items():
        share, decode = (times[name] / times["mmcalib"] for name in ("bare", "decode"))
        yield f"| {modality} | {form} | {share:.0%} | {decode:,.1f}× |"
    yield f"\nWall time of whole scans of {items:,} links to images:\n"
    yield "| scan | items/s | of 1 worker |\n|---|--:|--:|"
    for name, seconds in whole.items():
        yield f"| {name} | {items / seconds:,.0f} | {whole[ONE] / seconds:.2f}× |"


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
    gc.freeze()
    files = files_by_format(given.media)
    read = {key: headers(key[0], paths, given.rounds) for key, paths in files.items()}
    images = [
        path for (modality, _), paths in files.items() if modality == "image" for path in paths
    ]
    with tempfile.TemporaryDirectory(prefix="mmcalib-bench-") as scratch:
        whole = scans(images, given.items, given.rounds, Path(scratch))
    text = "\n".join(page(read, whole, given.items)) + "\n"
    print(text, end="")
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")
    if missed := list(targets(read, whole, given.items)):
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
