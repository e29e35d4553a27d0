"""How long the hit curve of a million requests takes, and whether it is exact.

    python benchmarks/mm_cache_speed.py [--requests N] [--out FILE]

Exact means: as many hits as `cachetools.LRUCache`, the class under vLLM's processor cache, counts
by itself at a few capacities, on shorter traffic of the same kind. Needs cachetools, which comes
with vLLM, and neither a model nor a GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cachetools

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mmcalib.derive.processor_cache import HitCurve, hit_curve  # noqa: E402

REQUESTS, SIMULATED = 1_000_000, 50_000
# What a user was promised.
MAX_S = 10.0
CAPACITIES = 6

Request = list[tuple[int, int]]


def uniform(chance: random.Random) -> int:
    """Every item as likely as any other: the longest way between two uses."""
    return chance.randrange(300_000)


def popular(chance: random.Random) -> int:
    """Few items make most of the traffic, as in a shop or a chat."""
    return min(int(chance.paretovariate(0.6)), 400_000)


def traffic(item: Callable[[random.Random], int], count: int) -> Iterator[Request]:
    """Requests of one item; an item's bytes follow from its key."""
    chance = random.Random(7)
    for _ in range(count):
        key = item(chance)
        yield [(key, 1000 + key % 977 * 1000)]


def conversations(count: int) -> Iterator[Request]:
    """Chats of up to eight turns, each of which carries all pictures so far."""
    chance, key, done = random.Random(7), 0, 0
    while done < count:
        turns = min(chance.randrange(1, 9), count - done)
        pictures = [(key + n, 1000 + (key + n) % 977 * 1000) for n in range(turns)]
        yield from (pictures[: turn + 1] for turn in range(turns))
        key, done = key + turns, done + turns


KINDS: dict[str, Callable[[int], Iterator[Request]]] = {
    "uniform": lambda count: traffic(uniform, count),
    "popular": lambda count: traffic(popular, count),
    "conversations": conversations,
}


@dataclass(frozen=True, slots=True)
class Timed:
    kind: str
    curve: HitCurve
    curve_s: float
    agreed: int
    tried: int

    @property
    def misses(self) -> list[str]:
        missed = [f"{self.kind}: {self.curve_s:.1f} s"] if self.curve_s > MAX_S else []
        if self.agreed < self.tried:
            missed.append(f"{self.kind}: differs from cachetools")
        return missed


def timed(kind: str, count: int) -> Timed:
    """Seconds of processor time of the curve alone: the traffic is made before."""
    requests = list(KINDS[kind](count))
    started = time.process_time()
    curve = hit_curve(requests)
    curve_s = time.process_time() - started
    shorter = requests[:SIMULATED]
    small = hit_curve(shorter)
    room = small.distinct_bytes - small.largest_request_bytes
    capacities = [
        small.largest_request_bytes + room * step // (CAPACITIES - 1) for step in range(CAPACITIES)
    ]
    agreed = sum(simulated(shorter, c) == small.hits_at(c) for c in capacities)
    return Timed(kind, curve, curve_s, agreed, len(capacities))


def simulated(requests: list[Request], capacity: int) -> int:
    """Hits of one real cache, called in vLLM's order: look up, touch, then fetch or store."""
    cache: cachetools.LRUCache[int, int] = cachetools.LRUCache(capacity, getsizeof=int)
    hits = 0
    for request in requests:
        known = [(key, nbytes) for key, nbytes in request if key in cache]
        hits += len(known)
        for key, _ in known:
            cache[key]
        for key, nbytes in request:
            if key in cache:
                cache[key]
            else:
                cache[key] = nbytes
    return hits


def table(results: list[Timed]) -> str:
    lines = [
        "| traffic | requests' items | distinct | hits of any cache | seconds | as cachetools |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {one.kind} | {one.curve.accesses:,} | {one.curve.distinct:,} "
        f"| {one.curve.most_rate:.1%} | {one.curve_s:.1f} | {one.agreed} of {one.tried} |"
        for one in results
    ]
    lines += [
        "",
        f"On {os.cpu_count()} CPUs, Python {platform.python_version()}, one thread, seconds of "
        f"processor time; cachetools on the first {SIMULATED:,} requests. Aim: {MAX_S:.0f} s.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"how many ({REQUESTS:,})")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    arguments = parser.parse_args()
    results = []
    for kind in KINDS:
        print(f"{kind} ...", file=sys.stderr, flush=True)
        results.append(timed(kind, arguments.requests))
    text = table(results)
    print(text, end="")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        heading = "# How long a hit curve takes\n\n`python benchmarks/mm_cache_speed.py`\n\n"
        arguments.out.write_text(heading + text, encoding="utf-8")
    missed = [figure for one in results for figure in one.misses]
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
