"""What `mmcalib scan` costs as the corpus grows; each scan in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scanning.media import tree

SMALLEST, STEP = 1000, 10

# ru_maxrss would count what the process was before it became Python.
_SCAN = """
import atexit, re, sys, time
from mmcalib.cli import main

def say():
    seconds = time.perf_counter() - started
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]
    print("scanned", seconds, int(peak) * 1024)

atexit.register(say)
started = time.perf_counter()
main()
"""


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan: seconds without Python's start, memory of the parent, size of what it wrote."""

    items: int
    seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Grown:
    """The quickest of several scans of one tree: with nothing remembered, and with everything."""

    cold: Scan
    warm: Scan


def sizes(most: int) -> list[int]:
    """1,000 and tenfold up to `most`."""
    found = [SMALLEST]
    while found[-1] * STEP <= most:
        found.append(found[-1] * STEP)
    return found


def growth(folder: Path, files: Sequence[str], most: int, rounds: int) -> Iterator[Grown]:
    """Grow a tree below `folder`, and scan it at each size; the largest is scanned once."""
    for items in sizes(most):
        tree(folder / "tree", files, items)
        runs = [_twice(folder / "tree", items) for _ in range(1 if items > 100_000 else rounds)]
        yield Grown(
            min((cold for cold, _ in runs), key=lambda scan: scan.seconds),
            min((warm for _, warm in runs), key=lambda scan: scan.seconds),
        )


def _twice(data: Path, items: int) -> tuple[Scan, Scan]:
    with tempfile.TemporaryDirectory(prefix="mmcalib-bench-") as scratch:
        return _once(data, items, scratch), _once(data, items, scratch)


def _once(data: Path, items: int, scratch: str) -> Scan:
    ran = subprocess.run(
        [sys.executable, "-c", _SCAN, "scan", "--data", str(data), "--json", "--quiet"],
        env={**os.environ, "MMCALIB_CACHE_DIR": scratch, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    *document, last = ran.stdout.splitlines()
    if (counted := json.loads("\n".join(document))["corpus"]["items"]) != items:
        raise ValueError(f"{counted} of {items} items were measured")
    _, seconds, peak = last.split()
    return Scan(items, float(seconds), int(peak))
