"""What an item costs by its count alone: a rule that every processed item has to bear out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mmcalib.derive.vllm_counts import VllmCount, VllmCounts
from mmcalib.domain.cost import Cost
from mmcalib.domain.shape_columns import Column

# A number by the embeds of an item, None where nothing says what it is.
Follows = Callable[[int], int | None]
# A first number and the second that goes with it.
_Point = tuple[int, int]

# So many points on a line are no chance, though others are not on it.
_LEAST_OF_PIECE = 8


@dataclass(frozen=True, slots=True)
class CostRule:
    """`text` are the tokens beside the embeds, `nbytes` those of the processed tensors, by the
    embeds or, where `by_parts`, by the parts; both as every witness has them. Seconds are in
    proportion to the embeds.
    """

    text: Follows
    nbytes: Follows
    seconds_per_embed: float
    by_parts: bool = False

    def columns(self, counts: VllmCounts) -> tuple[Column, Column]:
        """Text and bytes of each; -1 where the witnesses do not tell."""
        keys = counts.parts if self.by_parts else counts.embeds
        return _each(self.text, counts.embeds), _each(self.nbytes, keys)


def cost_rule(witnesses: Sequence[tuple[VllmCount, Cost]]) -> CostRule | None:
    """The rule of all these; None where one contradicts another."""
    costs = [cost for _, cost in witnesses]
    embeds = sum(cost.embeds for cost in costs)
    text = follows((cost.embeds, cost.tokens - cost.embeds) for cost in costs)
    if text is None or not embeds:
        return None
    each = sum(cost.load_s + cost.process_s for cost in costs) / embeds
    by_embeds = [(cost.embeds, cost.tensor_bytes) for cost in costs]
    by_parts = [(c.parts, cost.tensor_bytes) for c, cost in witnesses if c.parts is not None]
    whole = len(by_parts) == len(witnesses) and not _on_one_line(by_embeds)
    if whole and (nbytes := follows(by_parts)):
        return CostRule(text, nbytes, each, by_parts=True)
    nbytes = follows(by_embeds)
    return CostRule(text, nbytes, each) if nbytes else None


def _each(rule: Follows, keys: Column) -> Column:
    every, rows = np.unique(keys, return_inverse=True)
    found = (rule(key) for key in every.tolist())
    return np.array([-1 if one is None else one for one in found], dtype=np.int64)[rows]


def follows(pairs: Iterable[_Point]) -> Follows | None:
    """How the second number follows from the first: along a straight line, or along straight pieces
    where many are on each, or as that of a pair with the same first. None where equal ones have
    unequal seconds.
    """
    known: dict[int, int] = {}
    for first, second in pairs:
        if known.setdefault(first, second) != second:
            return None
    if not known:
        return None
    points = sorted(known.items())
    pieces = [(points[0], points[-1])] if _on_one_line(points) else list(_pieces(points))
    ends = [end for _, (end, _) in pieces]

    def second_of(first: int) -> int | None:
        if first in known:
            return known[first]
        place = bisect_left(ends, first)
        return _between(*pieces[place], first) if place < len(pieces) else None

    return second_of


def _on_one_line(points: Sequence[_Point]) -> bool:
    """Whether there are three at least, and all on it."""
    low, high = min(points), max(points)
    return len({first for first, _ in points}) > 2 and all(_on(low, high, one) for one in points)


def _pieces(points: Sequence[_Point]) -> Iterator[tuple[_Point, _Point]]:
    """Ends of the lines that many points in a row are on."""
    start = 0
    while start < len(points) - 1:
        end = start + 1
        while end + 1 < len(points) and _on(points[start], points[start + 1], points[end + 1]):
            end += 1
        if end - start + 1 >= _LEAST_OF_PIECE:
            yield points[start], points[end]
        start = end


def _on(one: _Point, other: _Point, point: _Point) -> bool:
    run, rise = other[0] - one[0], other[1] - one[1]
    return (point[1] - one[1]) * run == (point[0] - one[0]) * rise


def _between(low: _Point, high: _Point, first: int) -> int | None:
    """Only between the ends, and where it is a whole number."""
    if not low[0] <= first <= high[0]:
        return None
    value, rest = divmod((first - low[0]) * (high[1] - low[1]), high[0] - low[0])
    return None if rest else low[1] + value
