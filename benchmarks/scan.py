"""How fast a corpus is scanned, beside what others would use, and how that grows.

    python benchmarks/scan.py [--media DIR] [--most N] [--quick] [--out FILE]

All readers take turns on the same files, which the system has in memory. Needs neither vLLM nor a
GPU; imagesize, ffprobe and exiftool take part where they are installed. Exits 1
where a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from scanning import report  # noqa: E402
from scanning.growth import Grown, growth  # noqa: E402
from scanning.media import PHOTOS, Group, corpus_groups, made_groups, tree  # noqa: E402
from scanning.readers import answers, missing, readers  # noqa: E402
from scanning.timing import LEAST_S, in_turns  # noqa: E402
from scanning.whole import Scans, scans  # noqa: E402

ROUNDS, FILES, SCANNED, MOST = 7, 20, 50_000, 100_000
QUICK_ROUNDS, QUICK_FILES, QUICK_SCANNED, QUICK_MOST = 1, 1, 200, 1000
# A video takes a hundred times as long as an image.
MIXED_SHARE = 2

_LIBRARIES = {"pillow": "PIL", "av": "av", "soundfile": "soundfile", "imagesize": "imagesize"}


def probed(groups: Sequence[Group], rounds: int, least_s: float) -> Iterator[report.Probed]:
    for group in groups:
        say(f"{group.modality} {group.format} {group.origin}")
        able = [one for one in readers(group.modality) if answers(one, group.paths)]
        calls = {one.name: partial(one.read, group.paths) for one in able}
        yield report.Probed(group, in_turns(calls, rounds, least_s=least_s))


def scanned(scratch: Path, groups: Sequence[Group], items: int, rounds: int) -> dict[str, Scans]:
    """Of links to the corpus' images, and of links to all files, made ones too."""
    found: dict[str, Scans] = {}
    everything = [path for group in groups for path in group.paths]
    for name, files, count in (
        ("images", images(groups), items),
        ("images, video, audio", everything, max(items // MIXED_SHARE, 1)),
    ):
        say(f"scan of {count:,} {name}")
        folder = scratch / f"tree-{len(found)}"
        tree(folder, files, count)
        found[name] = scans(folder, count, rounds, bare=not found)
        shutil.rmtree(folder)
    return found


def images(groups: Sequence[Group]) -> list[str]:
    return [
        path
        for group in groups
        if group.modality == "image" and group.origin == "corpus"
        for path in group.paths
    ]


def say(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


def conditions(media: Path, rounds: int) -> str:
    libraries = ", ".join(
        f"{name} {version(name)}" for name, module in _LIBRARIES.items() if find_spec(module)
    )
    absent = "".join(f" Not installed: {name}." for name in missing())
    return (
        f"On {os.cpu_count()} CPUs, Python {platform.python_version()}, {libraries}; files of "
        f"`{media.name}` and made ones, in the system's memory. Best of {rounds} rounds, in turns."
        f"{absent}\n"
    )


def text(
    media: Path,
    rounds: int,
    found: Sequence[report.Probed],
    whole: dict[str, Scans],
    grown: Sequence[Grown],
    verdicts: Sequence[report.Verdict],
) -> str:
    return "\n".join(
        [
            "# How fast a corpus is scanned\n\n`python benchmarks/scan.py`\n",
            conditions(media, rounds),
            report.verdict_table(verdicts),
            "## One header, per format\n",
            "Processor time, of child processes too. `N×`: the other takes N times as long as "
            "mmcalib; `of bare`: mmcalib's share of the bare loop's speed, which neither turns by "
            "EXIF or display matrix nor refuses anything. `decode` is full decoding by the same "
            "library, `bare + 1 frame` what the rotation costs by hand, `at once` one process for "
            "all files. –: no answer for all files. Photo: 4000×3000 pixels.\n",
            report.probe_tables(found),
            "## Whole scans\n",
            "Wall time, and processor time of one more scan, processes' start included, of hard "
            "links to the corpus' files.\n",
            report.scan_table(whole),
            "## Growth\n",
            "`mmcalib scan`, default workers, without Python's start; cold: nothing remembered.\n",
            report.growth_table(grown),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--media", type=Path, default=ROOT / "sample", help="real files (sample)")
    parser.add_argument("--most", type=int, help=f"largest tree that is grown ({MOST:,})")
    parser.add_argument("--quick", action="store_true", help="a trial: the figures mean nothing")
    parser.add_argument("--out", type=Path, help="write the report to this file as well")
    given = parser.parse_args()
    if not given.media.is_dir():
        sys.exit(f"no such folder: {given.media}; `make demo` fetches the sample, or --media DIR")
    rounds, files, items, most = (
        (QUICK_ROUNDS, QUICK_FILES, QUICK_SCANNED, QUICK_MOST)
        if given.quick
        else (ROUNDS, FILES, SCANNED, MOST)
    )
    # As in a worker.
    warnings.simplefilter("ignore")
    gc.freeze()
    # Hard links need a file system, and millions of them not one that is memory.
    with tempfile.TemporaryDirectory(prefix="mmcalib-bench-") as name:
        scratch = Path(name)
        (scratch / "made").mkdir()
        groups = corpus_groups(given.media, files)
        photos = PHOTOS[:1] if given.quick else PHOTOS
        groups += made_groups(scratch / "made", groups, photos)
        found = list(probed(groups, rounds, 0.0 if given.quick else LEAST_S))
        whole = scanned(scratch, groups, items, rounds)
        grown = []
        for one in growth(scratch / "grown", images(groups), given.most or most, min(rounds, 3)):
            say(f"grown to {one.cold.items:,}")
            grown.append(one)
    verdicts = [
        *report.probe_verdicts(found),
        *report.scan_verdicts(whole),
        *report.growth_verdicts(grown),
    ]
    said = text(given.media, rounds, found, whole, grown, verdicts)
    print(said, end="")
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(said, encoding="utf-8")
    missed = [one.target for one in verdicts if not one.passed]
    if missed and not given.quick:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
