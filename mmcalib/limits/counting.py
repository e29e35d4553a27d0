"""Costs from vLLM's own count of an item's size, confirmed by spot checks.

Processing every item's pixels for every value of a knob takes minutes; counting takes no time.
A count is used only if it reproduced everything that was processed.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mmcalib.domain.model import Cost
from mmcalib.domain.shape_columns import Column, Shapes
from mmcalib.domain.shapes import Shape
from mmcalib.limits.costs import (
    MISSING,
    ColumnField,
    CostColumns,
    CostTable,
    sampled_rows,
    sampled_tuple,
)


@dataclass(frozen=True, slots=True)
class VllmCount:
    """vLLM's count of embeds, its loader's numbers, and tiles or audio frames (`parts`), if any."""

    embeds: int
    sampled: tuple[int, ...]
    parts: int | None = None


@dataclass(frozen=True, eq=False)
class VllmCounts:
    """A row for each shape that vLLM counts, ascending; unknown parts are -1."""

    shapes: Shapes
    columns: Column

    embeds = ColumnField()
    sampled = ColumnField()
    parts = ColumnField()

    @classmethod
    def from_columns(
        cls,
        shapes: Shapes,
        embeds: Iterable[int | None],
        sampled: Iterable[Sequence[int]],
        parts: Iterable[int | None],
    ) -> VllmCounts:
        """Build rows, without shapes that vLLM does not count (embeds of None)."""
        numbers = sampled_rows(shapes.modality, sampled)
        kind = [("embeds", "i8"), ("sampled", numbers.dtype, numbers.shape[1:]), ("parts", "i8")]
        rows = np.empty(len(shapes), kind)
        rows["embeds"] = [MISSING if one is None else one for one in embeds]
        rows["sampled"] = numbers
        rows["parts"] = [MISSING if one is None else one for one in parts]
        return cls(shapes, rows).take(np.flatnonzero(rows["embeds"] != MISSING))

    @classmethod
    def concatenate(cls, parts: Sequence[VllmCounts], of: Shapes) -> VllmCounts:
        """Concatenate ascending parts of some or all of `from_columns`."""
        rows = np.concatenate([part.columns for part in parts])
        if len(rows) < len(of):
            of = Shapes(of.modality, np.concatenate([part.shapes.rows for part in parts]))
        return cls(of, rows)

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, row: int) -> VllmCount:
        embeds, sampled, parts = self.columns[row].item()
        known_parts = None if parts == MISSING else parts
        return VllmCount(embeds, sampled_tuple(sampled.tolist()), known_parts)

    def take(self, rows: Column) -> VllmCounts:
        """Select rows by ascending positions."""
        return VllmCounts(self.shapes.take(rows), self.columns[rows])


# Shapes to process for each value, spread over those that it changes.
SPOT_CHECKS = 8
# If costs have few levels, such as tiles, check the widest and narrowest of every level.
_MOST_LEVELS = 16


def match_counts(counts: VllmCounts, costs: CostColumns) -> Column:
    """Mask of the costs that equal their count."""
    rows = counts.shapes.positions(costs.shapes)
    mask: Column = rows >= 0
    known = np.flatnonzero(mask)
    rows = rows[known]
    same = (counts.sampled[rows] == costs.sampled[known]).all(axis=1)
    mask[known] = same & (counts.embeds[rows] == costs.embeds[known])
    return mask


def choose_spot_checks(costs: CostColumns, moved: Column, counts: VllmCounts) -> list[Shape]:
    """Shapes to process: heaviest, lightest, widest, narrowest, others, and ends of few levels."""
    shapes = costs.shapes.take(moved)
    embeds, slopes = counts.embeds[counts.shapes.positions(shapes)], shapes.aspect_ratios()
    by_weight = np.lexsort((slopes, costs.embeds[moved], embeds))
    by_slope = np.argsort(slopes, kind="stable")
    last = len(moved) - 1
    among = [by_weight[round(last * part / (SPOT_CHECKS - 3))] for part in range(SPOT_CHECKS - 2)]
    picked = [*among, by_slope[0], by_slope[-1], *ends_of_levels(embeds, by_slope, _MOST_LEVELS)]
    return [shapes[row] for row in dict.fromkeys(map(int, picked))]


def ends_of_levels(levels: Column, order: Column, most: int) -> list[int]:
    """The first and last row in this order of each level, if there are at most `most` levels."""
    every, first = np.unique(levels[order], return_index=True)
    if len(every) > most:
        return []
    _, last = np.unique(levels[order[::-1]], return_index=True)
    return [int(row) for pair in zip(order[first], order[::-1][last], strict=True) for row in pair]


def fill_table(
    table: CostTable, default: CostTable, counts: VllmCounts, measured: Sequence[Shape]
) -> CostTable | None:
    """Fill unmeasured shapes by their count; None if a count is wrong or tokens are irregular."""
    modality = counts.shapes.modality
    now, usual = table.columns_of(modality), default.columns_of(modality)
    places = now.shapes.positions(measured)
    if (places < 0).any():
        return None
    seen = now.take(np.unique(places))
    if not match_counts(counts, seen).all():
        return None
    # Rows of the counts and of the default costs to compute.
    of_usual = usual.shapes.positions(counts.shapes)
    left = ~match_counts(counts, usual)[of_usual]
    left[counts.shapes.positions(measured)] = False
    rows, embeds = of_usual[left], counts.embeds[left]
    before = usual.embeds[rows]
    spotted = usual.take(usual.shapes.positions(seen.shapes))
    text = _text_tokens(seen, spotted, usual.tokens[rows] - before, embeds)
    if text is None:
        return None
    # How much slower the measured items were than by default.
    usual_s = float(spotted.process_s.sum())
    slower = float(seen.process_s.sum()) / usual_s if usual_s else 1.0
    share = np.divide(embeds, before, out=np.ones(len(rows)), where=before > 0)
    columns = now.with_counts(
        now.shapes.positions(usual.shapes.take(rows)),
        tokens=embeds + text,
        embeds=embeds,
        tensor_bytes=np.rint(usual.tensor_bytes[rows] * share).astype(np.int64),
        process_s=usual.process_s[rows] * slower,
        sampled=counts.sampled[left],
    )
    return replace(table, columns={**table.columns, modality: columns})


def _text_tokens(
    seen: CostColumns, usual: CostColumns, by_default: Column, embeds: Column
) -> Column | None:
    """Prompt tokens besides an item's embeds, as by default or as for equal embeds, if known."""
    texts = seen.tokens - seen.embeds
    if (texts == usual.tokens - usual.embeds).all():
        return by_default
    levels: dict[int, set[int]] = {}
    for level, text in zip(seen.embeds.tolist(), texts.tolist(), strict=True):
        levels.setdefault(level, set()).add(text)
    known = {level: texts.pop() for level, texts in levels.items() if len(texts) == 1}
    by_level = _apply(known.get, embeds)
    return None if (by_level == MISSING).any() else by_level


# Maps an item's embeds to a number, None if unknown.
Relation = Callable[[int], int | None]
# A first number and its second.
_Point = tuple[int, int]

# This many points on one line are not chance, even if others are off it.
_LEAST_OF_PIECE = 8


@dataclass(frozen=True, slots=True)
class CostRule:
    """`text` tokens besides the embeds; `nbytes` of tensors by embeds, or `by_parts` by parts."""

    text: Relation
    nbytes: Relation
    seconds_per_embed: float
    by_parts: bool = False

    def columns(self, counts: VllmCounts) -> tuple[Column, Column]:
        """Text and bytes of each; -1 if the witnesses do not determine them."""
        keys = counts.parts if self.by_parts else counts.embeds
        return _apply(self.text, counts.embeds), _apply(self.nbytes, keys)


def fit_cost_rule(witnesses: Sequence[tuple[VllmCount, Cost]]) -> CostRule | None:
    """Fit one rule to all witnesses; None if they contradict each other."""
    costs = [cost for _, cost in witnesses]
    embeds = sum(cost.embeds for cost in costs)
    text = fit_relation((cost.embeds, cost.tokens - cost.embeds) for cost in costs)
    if text is None or not embeds:
        return None
    each = sum(cost.load_s + cost.process_s for cost in costs) / embeds
    by_embeds = [(cost.embeds, cost.tensor_bytes) for cost in costs]
    by_parts = [(c.parts, cost.tensor_bytes) for c, cost in witnesses if c.parts is not None]
    whole = len(by_parts) == len(witnesses) and not _on_one_line(by_embeds)
    if whole and (nbytes := fit_relation(by_parts)):
        return CostRule(text, nbytes, each, by_parts=True)
    nbytes = fit_relation(by_embeds)
    return CostRule(text, nbytes, each) if nbytes else None


def _apply(rule: Relation, keys: Column) -> Column:
    """The rule's number of each key; `MISSING` where it knows none."""
    every, rows = np.unique(keys, return_inverse=True)
    values = (rule(key) for key in every.tolist())
    return np.array([MISSING if one is None else one for one in values], dtype=np.int64)[rows]


def fit_relation(pairs: Iterable[_Point]) -> Relation | None:
    """Fit second to first: a line, pieces of many points, or a lookup; None for contradictions."""
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
        if place == len(pieces) or first < pieces[place][0][0]:
            return None
        (low, at_low), (high, at_high) = pieces[place]
        value, rest = divmod((first - low) * (at_high - at_low), high - low)
        return None if rest else at_low + value

    return second_of


def _on_one_line(points: Sequence[_Point]) -> bool:
    """Check that there are at least three points, all on one line."""
    low, high = min(points), max(points)
    on_line = all(_is_on_line(low, high, one) for one in points)
    return len({first for first, _ in points}) > 2 and on_line


def _pieces(points: Sequence[_Point]) -> Iterator[tuple[_Point, _Point]]:
    """Ends of the lines through many consecutive points."""
    start = 0
    while start < len(points) - 1:
        end = start + 1
        line = points[start], points[start + 1]
        while end + 1 < len(points) and _is_on_line(*line, points[end + 1]):
            end += 1
        if end - start + 1 >= _LEAST_OF_PIECE:
            yield points[start], points[end]
        start = end


def _is_on_line(one: _Point, other: _Point, point: _Point) -> bool:
    run, rise = other[0] - one[0], other[1] - one[1]
    return (point[1] - one[1]) * run == (point[0] - one[0]) * rise


# Enough to prove a count: extremes, steps of the count, and a random sample.
PROBES = 320
# For a setting that does not change the costs, after a count was proven on the full number.
PROBES_AGAIN = 32
# Steps to check, per PROBES.
_STEPS = 100
# If costs have few levels, such as tiles, check each.
_MOST_WITNESS_LEVELS = 64
# Reproducible, not secret.
_SEED = 0


def choose_probe_shapes(counts: VllmCounts, least: int = PROBES) -> list[Shape]:
    """Choose at least `least` shapes, or all: extremes, steps of the count, and a random sample."""
    if not len(counts):
        return []
    weights = counts.shapes.weights()
    by_count = np.lexsort((weights, counts.embeds))
    by_slope = np.argsort(counts.shapes.aspect_ratios(), kind="stable")
    by_weight = np.argsort(weights, kind="stable")
    # Steps of the count, evenly spaced: the rows before and after each.
    steps = np.flatnonzero(np.diff(counts.embeds[by_count])) + 1
    every = -(-len(steps) // (_STEPS * least // PROBES)) or 1
    picked = dict.fromkeys(
        [
            *(int(order[end]) for order in (by_count, by_slope, by_weight) for end in (0, -1)),
            *(int(row) for at in steps[::every] for row in (by_count[at - 1], by_count[at])),
            *ends_of_levels(counts.embeds, by_slope, _MOST_WITNESS_LEVELS),
        ]
    )
    rest = by_count[~np.isin(by_count, list(picked))]
    more = min(max(0, least - len(picked)), len(rest))
    sample = random.Random(_SEED).sample(range(len(rest)), more)  # noqa: S311
    return [counts.shapes[row] for row in (*picked, *(int(rest[place]) for place in sample))]
