"""Which items to measure with their real media: the extremes first, then a random choice."""

from __future__ import annotations

import random
from collections.abc import Callable

from mmcalib.census.census import Census
from mmcalib.domain.shape_columns import Shapes
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, weight


def choose(census: Census, per_modality: int, seed: int = 0) -> list[tuple[Shape, str]]:
    """At most `per_modality` distinct shapes of each modality, each with an exemplar's path.

    In this order: the heaviest (pixels; frames × pixels; samples), the largest picture, the
    longest, the widest, the tallest, the smallest; the rest at random. The same census and seed
    give the same choice, and one modality's choice does not depend on another's.
    """
    chosen: list[tuple[Shape, str]] = []
    for modality in census.modalities():
        found = census.counts(modality)
        picked = dict.fromkeys(_foremost(found.shapes, rank) for rank in _RANKS[modality])
        rest = [row for row in range(len(found)) if row not in picked]
        # Reproducible, not secret.
        random.Random(f"{seed}:{modality}").shuffle(rest)  # noqa: S311
        rows = [*picked, *rest][: max(0, per_modality)]
        chosen += [(found.shapes[row], found.paths_at(row)[0]) for row in rows]
    return chosen


def _foremost(shapes: Shapes, rank: Rank) -> int:
    """The place of the first that ranks highest."""
    return max(enumerate(shapes), key=lambda one: (rank(one[1]), -one[0]))[0]


def _area(shape: Shape) -> float:
    return 0.0 if isinstance(shape, AudioShape) else shape.width_px * shape.height_px


def _duration(shape: Shape) -> float:
    return 0.0 if isinstance(shape, ImageShape) else shape.duration_s


def _aspect(shape: Shape) -> float:
    return 1.0 if isinstance(shape, AudioShape) else shape.width_px / shape.height_px


def _lightness(shape: Shape) -> float:
    return -weight(shape)


def _tallness(shape: Shape) -> float:
    return -_aspect(shape)


Rank = Callable[[Shape], float]
_RANKS: dict[Modality, tuple[Rank, ...]] = {
    "image": (weight, _aspect, _tallness, _lightness),
    "video": (weight, _area, _duration, _aspect, _tallness, _lightness),
    "audio": (weight, _duration, _lightness),
}
