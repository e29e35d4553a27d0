"""Bins of many shapes, by tokens and by size, in thirds of an octave."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmcalib.domain.shapes import ImageShape

if TYPE_CHECKING:
    from mmcalib.derive.costs import ItemCost

# Bins per factor of two.
STEPS = 3


@dataclass(slots=True)
class TokenBin:
    """Numbers of shapes and items that cost `least_tokens` up to the next bin."""

    least_tokens: int
    shapes: int = 0
    items: int = 0


@dataclass(slots=True)
class SizeCell:
    """Shapes of about one size; `shape` and `tokens` are of the costliest."""

    shape: ImageShape
    tokens: int
    shapes: int


def bin_index(value: float) -> int:
    """Return the bin of a number; below one counts as one."""
    return math.floor(math.log2(max(1, value)) * STEPS)


def bin_edge(number: float) -> float:
    """Return the lower edge of a bin."""
    return float(2 ** (number / STEPS))


def bin_by_tokens(costs: Iterable[ItemCost]) -> list[TokenBin]:
    """Bin costs by tokens, ascending, without empty bins."""
    bins: dict[int, TokenBin] = {}
    for cost in costs:
        at = bin_index(cost.tokens)
        bin_ = bins.setdefault(at, TokenBin(math.ceil(bin_edge(at))))
        bin_.shapes += 1
        bin_.items += cost.count
    return [bins[at] for at in sorted(bins)]


def bin_by_size(costs: Iterable[ItemCost]) -> list[SizeCell]:
    """Bin images by width and height, the smallest first."""
    cells: dict[tuple[int, int], SizeCell] = {}
    for cost in costs:
        shape = cost.shape
        if not isinstance(shape, ImageShape):
            continue
        at = bin_index(shape.width_px), bin_index(shape.height_px)
        cell = cells.setdefault(at, SizeCell(shape, cost.tokens, 0))
        cell.shapes += 1
        if cost.tokens > cell.tokens:
            cell.shape, cell.tokens = shape, cost.tokens
    return [cells[at] for at in sorted(cells)]
