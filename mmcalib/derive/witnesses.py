"""Which shapes are processed so that vLLM's own count may stand for all the others."""

from __future__ import annotations

import random

import numpy as np

from mmcalib.derive.counted import ends_of_levels
from mmcalib.derive.vllm_counts import VllmCounts
from mmcalib.domain.shape_columns import Column
from mmcalib.domain.shapes import Shape

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


def witnesses(counts: VllmCounts, least: int = WITNESSES) -> list[Shape]:
    """At least so many of the shapes, or all: the heaviest, lightest, flattest and tallest, both
    sides of steps of the count, of few levels the flattest and tallest, others by chance.
    """
    if not len(counts):
        return []
    weights = counts.shapes.weights()
    by_count = np.lexsort((weights, counts.embeds))
    by_slope = np.argsort(counts.shapes.slopes(), kind="stable")
    by_weight = np.argsort(weights, kind="stable")
    picked = dict.fromkeys(
        [
            *(int(order[end]) for order in (by_count, by_slope, by_weight) for end in (0, -1)),
            *_steps(by_count, counts.embeds, _STEPS * least // WITNESSES),
            *ends_of_levels(counts.embeds, by_slope, _MOST_LEVELS),
        ]
    )
    rest = by_count[~np.isin(by_count, list(picked))]
    more = min(max(0, least - len(picked)), len(rest))
    by_chance = random.Random(_SEED).sample(range(len(rest)), more)  # noqa: S311
    return [counts.shapes[row] for row in (*picked, *(int(rest[place]) for place in by_chance))]


def _steps(by_count: Column, embeds: Column, most: int) -> list[int]:
    """The last row before and the first after each of so many steps of the count, evenly over
    all.
    """
    places = np.flatnonzero(np.diff(embeds[by_count])) + 1
    every = -(-len(places) // most) or 1
    return [int(row) for at in places[::every] for row in (by_count[at - 1], by_count[at])]
