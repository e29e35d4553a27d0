"""The sizes of a corpus as so few points that a page can show them, and classes of their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib import wording
from mmcalib.report.html.known import Costed, size_px

# More points than this are counted in cells of a factor of the cube root of two.
_POINTS = 250
_CELLS = 3
_CLASSES = 5


@dataclass(frozen=True, slots=True)
class Spot:
    """A size, or a cell of sizes, and the most tokens that one of its `shapes` costs."""

    width_px: float
    height_px: float
    tokens: int
    shapes: int


def spots_of(known: Sequence[Costed]) -> tuple[list[Spot], bool]:
    """Every size by itself while there are few, else cells; and whether the former."""
    pairs: dict[tuple[float, float], tuple[int, int]] = {}
    of_sizes = [(size, one.tokens) for one in known if (size := size_px(one.shape))]
    exact = len({size for size, _ in of_sizes}) <= _POINTS
    for size, tokens in of_sizes:
        place = size if exact else (_centre(size[0]), _centre(size[1]))
        shapes, most = pairs.get(place, (0, 0))
        pairs[place] = shapes + 1, max(most, tokens)
    found = [Spot(w, h, most, shapes) for (w, h), (shapes, most) in pairs.items()]
    return sorted(found, key=lambda spot: (spot.tokens, spot.width_px, spot.height_px)), exact


def _centre(pixels: float) -> float:
    return float(2 ** ((math.floor(math.log2(pixels) * _CELLS) + 0.5) / _CELLS))


def class_edges(tokens: Sequence[int]) -> list[int]:
    """Where one colour ends and the next begins, in even steps of the logarithm, rounded."""
    low, high = max(1, min(tokens)), max(tokens)
    steps = [low * (high / low) ** (place / _CLASSES) for place in range(1, _CLASSES)]
    rounded = {_rounded(step) for step in steps}
    return sorted(edge for edge in rounded if low < edge <= high)


def _rounded(value: float) -> int:
    """To two digits."""
    unit = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return int(round(value / unit) * unit)


def class_words(edges: Sequence[int], place: int) -> str:
    if not edges:
        return "tokens alike"
    if place == 0:
        return f"below {wording.number(edges[0])} tokens"
    if place == len(edges):
        return f"{wording.number(edges[-1])} or more"
    return f"{wording.number(edges[place - 1])}–{wording.number(edges[place] - 1)}"
