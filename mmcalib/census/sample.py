"""Which items to measure with their real media: the extremes first, then a random choice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mmcalib.census.census import Census
from mmcalib.domain.shapes import Modality, Shape, weight


def choose(census: Census, per_modality: int, seed: int = 0) -> list[tuple[Shape, str]]:
    """At most `per_modality` distinct shapes of each modality, each with an exemplar's path.

    In this order: the heaviest (pixels; frames × pixels; samples), the largest picture, the
    longest, the widest, the tallest, the smallest; the rest at random. The same census and seed
    give the same choice, and one modality's choice does not depend on another's.
    """
    chosen: list[tuple[Shape, str]] = []
    for modality in census.modalities():
        found = census.counts(modality)
        # Of those that rank highest the first.
        picked = dict.fromkeys(
            max(enumerate(found.shapes), key=lambda one: (rank(one[1]), -one[0]))[0]
            for rank in map(_RANKS.__getitem__, _EXTREMES[modality])
        )
        rest = [row for row in range(len(found)) if row not in picked]
        # Reproducible, not secret.
        random.Random(f"{seed}:{modality}").shuffle(rest)  # noqa: S311
        rows = [*picked, *rest][: max(0, per_modality)]
        chosen += [(found.shapes[row], found.paths_at(row)[0]) for row in rows]
    return chosen


_RANKS: dict[str, Callable[[Any], float]] = {
    "weight": weight,
    "area": lambda shape: shape.width_px * shape.height_px,
    "duration": lambda shape: shape.duration_s,
    "aspect": lambda shape: shape.width_px / shape.height_px,
    "tallness": lambda shape: -(shape.width_px / shape.height_px),
    "lightness": lambda shape: -weight(shape),
}
_EXTREMES: dict[Modality, tuple[str, ...]] = {
    "image": ("weight", "aspect", "tallness", "lightness"),
    "video": ("weight", "area", "duration", "aspect", "tallness", "lightness"),
    "audio": ("weight", "duration", "lightness"),
}
