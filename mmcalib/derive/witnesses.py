"""Which shapes are processed so that vLLM's own count may stand for all the others."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from mmcalib.derive.counted import Counts, slope
from mmcalib.domain.shapes import Shape, weight

# As many as prove a count, and no fewer: extremes, steps of the count, and some by chance.
WITNESSES = 320
# Under a setting that leaves what it costs as it was, where a count has been proven on that many.
WITNESSES_AGAIN = 32
# Steps that are looked at, of so many witnesses.
_STEPS = 100
# Of costs with few levels, such as tiles, each is looked at.
_MOST_LEVELS = 64
# Reproducible, not secret.
_SEED = 0


def witnesses(counts: Counts, least: int = WITNESSES) -> list[Shape]:
    """At least so many of the shapes, or all: the heaviest, lightest, flattest and tallest, both
    sides of steps of the count, of few levels the flattest and tallest, others by chance.
    """
    if not counts:
        return []
    by_count = sorted(counts, key=lambda shape: (counts[shape].embeds, weight(shape)))
    by_slope = sorted(counts, key=slope)
    by_weight = sorted(counts, key=weight)
    picked = dict.fromkeys(
        [
            *(order[end] for order in (by_count, by_slope, by_weight) for end in (0, -1)),
            *_steps(by_count, counts, _STEPS * least // WITNESSES),
            *_levels(by_slope, counts),
        ]
    )
    rest = [shape for shape in by_count if shape not in picked]
    more = max(0, least - len(picked))
    by_chance = random.Random(_SEED).sample(rest, min(more, len(rest)))  # noqa: S311
    return [*picked, *by_chance]


def _steps(by_count: Sequence[Shape], counts: Counts, most: int) -> Iterator[Shape]:
    """The last shape before and the first after each of so many steps of the count, evenly over
    all.
    """
    places = [
        place
        for place in range(1, len(by_count))
        if counts[by_count[place]].embeds != counts[by_count[place - 1]].embeds
    ]
    every = -(-len(places) // most) or 1
    for place in places[::every]:
        yield by_count[place - 1]
        yield by_count[place]


def _levels(by_slope: Sequence[Shape], counts: Counts) -> Iterator[Shape]:
    ends: dict[int, tuple[Shape, Shape]] = {}
    for shape in by_slope:
        level = counts[shape].embeds
        ends[level] = (ends[level][0] if level in ends else shape, shape)
    if len(ends) <= _MOST_LEVELS:
        for pair in ends.values():
            yield from pair
