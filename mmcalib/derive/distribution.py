"""Many shapes in few numbers: by tokens and by size, in thirds of an octave."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmcalib.domain.shapes import ImageShape

if TYPE_CHECKING:
    from mmcalib.derive.costs import ItemCost

# Of a factor of two.
STEPS = 3


@dataclass(slots=True)
class TokenBin:
    """How many shapes, and items of them, cost `least_tokens` and less than the next bin."""

    least_tokens: int
    shapes: int = 0
    items: int = 0


@dataclass(slots=True)
class SizeCell:
    """Shapes of about one size; `shape` and `tokens` are of the costliest."""

    shape: ImageShape
    tokens: int
    shapes: int


def place(value: float) -> int:
    """The bin of a number; what is less than one counts as one."""
    return math.floor(math.log2(max(1, value)) * STEPS)


def edge(number: float) -> float:
    """Where a bin begins."""
    return float(2 ** (number / STEPS))


def token_bins(costs: Iterable[ItemCost]) -> list[TokenBin]:
    """Ascending, without those that are empty."""
    found: dict[int, TokenBin] = {}
    for cost in costs:
        at = place(cost.tokens)
        bin_ = found.get(at)
        if bin_ is None:
            bin_ = found[at] = TokenBin(math.ceil(edge(at)))
        bin_.shapes += 1
        bin_.items += cost.count
    return [found[at] for at in sorted(found)]


def size_cells(costs: Iterable[ItemCost]) -> list[SizeCell]:
    """Of the images, the smallest first."""
    found: dict[tuple[int, int], SizeCell] = {}
    for cost in costs:
        shape = cost.shape
        if not isinstance(shape, ImageShape):
            continue
        at = place(shape.width_px), place(shape.height_px)
        cell = found.get(at)
        if cell is None:
            found[at] = SizeCell(shape, cost.tokens, 1)
            continue
        cell.shapes += 1
        if cost.tokens > cell.tokens:
            cell.shape, cell.tokens = shape, cost.tokens
    return [found[at] for at in sorted(found)]
