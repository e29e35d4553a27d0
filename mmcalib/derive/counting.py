"""Costs computed from vLLM's own count of an item's size, where spot checks bear it out.

Processing the pixels of every item for every value of a knob takes minutes; the count takes none.
It is used only where it reproduced everything that was processed.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mmcalib.derive.costs import NONE, CostColumns, CostTable, sampled_rows, sampled_tuple
from mmcalib.domain.model import Cost
from mmcalib.domain.shape_columns import Column, Shapes
from mmcalib.domain.shapes import Shape


@dataclass(frozen=True, slots=True)
class VllmCount:
    """Embeds by vLLM's own count, what its loader would sample, and, where known, the parts of its
    tensors: tiles of an image, frames of a sound's features.
    """

    embeds: int
    sampled: tuple[int, ...]
    parts: int | None = None


@dataclass(frozen=True, eq=False)
class VllmCounts:
    """A row for each shape that vLLM counts, ascending; -1 for parts that are not known."""

    shapes: Shapes
    rows: Column

    @property
    def embeds(self) -> Column:
        return self.rows["embeds"]

    @property
    def parts(self) -> Column:
        return self.rows["parts"]

    @property
    def sampled(self) -> Column:
        return self.rows["sampled"]

    @classmethod
    def of(
        cls,
        shapes: Shapes,
        embeds: Iterable[int | None],
        sampled: Iterable[Sequence[int]],
        parts: Iterable[int | None],
    ) -> VllmCounts:
        """Without those shapes whose embeds are None: vLLM does not count them."""
        numbers = sampled_rows(shapes.modality, sampled)
        kind = [("embeds", "i8"), ("sampled", numbers.dtype, numbers.shape[1:]), ("parts", "i8")]
        rows = np.empty(len(shapes), kind)
        rows["embeds"] = [NONE if one is None else one for one in embeds]
        rows["sampled"] = numbers
        rows["parts"] = [NONE if one is None else one for one in parts]
        return cls(shapes, rows).take(np.flatnonzero(rows["embeds"] != NONE))

    @classmethod
    def joined(cls, parts: Sequence[VllmCounts], of: Shapes) -> VllmCounts:
        """Each part ascending behind the one before, of some or all of these shapes."""
        rows = np.concatenate([part.rows for part in parts])
        if len(rows) < len(of):
            of = Shapes(of.modality, np.concatenate([part.shapes.rows for part in parts]))
        return cls(of, rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> VllmCount:
        embeds, sampled, parts = self.rows[row].item()
        return VllmCount(embeds, sampled_tuple(sampled.tolist()), None if parts == NONE else parts)

    def take(self, rows: Column) -> VllmCounts:
        """These rows, by ascending places."""
        return VllmCounts(self.shapes.take(rows), self.rows[rows])


# Shapes that are processed for each value, spread over what it changes.
SPOTS = 8
# Of costs with few levels, such as tiles: every level is looked at, at its flattest and tallest.
_MOST_LEVELS = 16


def as_counted(counts: VllmCounts, costs: CostColumns) -> Column:
    """Of each cost whether it is as counted."""
    rows = counts.shapes.places(costs.shapes)
    found: Column = rows >= 0
    known = np.flatnonzero(found)
    rows = rows[known]
    same = (counts.sampled[rows] == costs.sampled[known]).all(axis=1)
    found[known] = same & (counts.embeds[rows] == costs.embeds[known])
    return found


def reproduces(counts: VllmCounts, costs: CostColumns) -> bool:
    """Whether every one of these measured costs is as counted."""
    return bool(as_counted(counts, costs).all())


def spots(costs: CostColumns, moved: Column, counts: VllmCounts) -> list[Shape]:
    """The rows to process: heaviest, lightest, flattest, tallest, others, and few of each level."""
    shapes = costs.shapes.take(moved)
    embeds, slopes = counts.embeds[counts.shapes.places(shapes)], shapes.slopes()
    by_weight = np.lexsort((slopes, costs.embeds[moved], embeds))
    by_slope = np.argsort(slopes, kind="stable")
    last = len(moved) - 1
    among = [by_weight[round(last * part / (SPOTS - 3))] for part in range(SPOTS - 2)]
    picked = [*among, by_slope[0], by_slope[-1], *ends_of_levels(embeds, by_slope, _MOST_LEVELS)]
    return [shapes[row] for row in dict.fromkeys(map(int, picked))]


def ends_of_levels(levels: Column, order: Column, most: int) -> list[int]:
    """The first and the last row in this order of each level, where there are no more of them."""
    every, first = np.unique(levels[order], return_index=True)
    if len(every) > most:
        return []
    _, last = np.unique(levels[order[::-1]], return_index=True)
    pairs = zip(order[first], order[::-1][last], strict=True)
    return [int(row) for pair in pairs for row in pair]


def fill_table(
    table: CostTable, default: CostTable, counts: VllmCounts, measured: Sequence[Shape]
) -> CostTable | None:
    """The table with unmeasured shapes by their count; None where it is wrong or tokens unruly."""
    modality = counts.shapes.modality
    now, usual = table.of(modality), default.of(modality)
    places = now.shapes.places(measured)
    if (places < 0).any():
        return None
    seen = now.take(np.unique(places))
    if not reproduces(counts, seen):
        return None
    # Rows of the counts, and of the costs by default, that are to be computed.
    of_usual = usual.shapes.places(counts.shapes)
    left = ~as_counted(counts, usual)[of_usual]
    at = counts.shapes.places(measured)
    left[at[at >= 0]] = False
    rows, embeds = of_usual[left], counts.embeds[left]
    before = usual.embeds[rows]
    spotted = usual.take(usual.shapes.places(seen.shapes))
    beside = _beside(seen, spotted, usual.tokens[rows] - before, embeds)
    if beside is None:
        return None
    # How much longer the measured items took than by default.
    usual_s = float(spotted.process_s.sum())
    slower = float(seen.process_s.sum()) / usual_s if usual_s else 1.0
    share = np.divide(embeds, before, out=np.ones(len(rows)), where=before > 0)
    columns = now.counted(
        now.shapes.places(usual.shapes.take(rows)),
        tokens=embeds + beside,
        embeds=embeds,
        tensor_bytes=np.rint(usual.tensor_bytes[rows] * share).astype(np.int64),
        process_s=usual.process_s[rows] * slower,
        sampled=counts.sampled[left],
    )
    return replace(table, columns={**table.columns, modality: columns})


def _beside(
    seen: CostColumns, usual: CostColumns, by_default: Column, embeds: Column
) -> Column | None:
    """Prompt tokens beside an item's embeds, by default or by equal embeds; None where unknown."""
    texts = seen.tokens - seen.embeds
    if (texts == usual.tokens - usual.embeds).all():
        return by_default
    levels: dict[int, set[int]] = {}
    for level, text in zip(seen.embeds.tolist(), texts.tolist(), strict=True):
        levels.setdefault(level, set()).add(text)
    every, rows = np.unique(embeds, return_inverse=True)
    found = [levels.get(level, set()) for level in every.tolist()]
    if any(len(texts) != 1 for texts in found):
        return None
    return np.array([next(iter(texts)) for texts in found], dtype=np.int64)[rows]


# A number by the embeds of an item, None where nothing says what it is.
Follows = Callable[[int], int | None]
# A first number and the second that goes with it.
_Point = tuple[int, int]

# So many points on a line are no chance, though others are not on it.
_LEAST_OF_PIECE = 8


@dataclass(frozen=True, slots=True)
class CostRule:
    """`text` are tokens beside the embeds, `nbytes` of processed tensors by the embeds or,
    `by_parts`, by the parts. Seconds are in proportion to the embeds.
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
    """How the second number follows from the first: along one straight line, pieces with many
    points, or by pairs. None where equal firsts have unequal seconds.
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


# As many as prove a count, and no fewer: extremes, steps of the count, and some by chance.
WITNESSES = 320
# Under a setting that leaves what it costs as it was, where a count has been proven on that many.
WITNESSES_AGAIN = 32
# Steps that are looked at, of so many witnesses.
_STEPS = 100
# Of costs with few levels, such as tiles, each is looked at.
_MOST_WITNESS_LEVELS = 64
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
    # Steps of the count, evenly over all: the rows before and after each.
    steps = np.flatnonzero(np.diff(counts.embeds[by_count])) + 1
    every = -(-len(steps) // (_STEPS * least // WITNESSES)) or 1
    picked = dict.fromkeys(
        [
            *(int(order[end]) for order in (by_count, by_slope, by_weight) for end in (0, -1)),
            *(int(row) for at in steps[::every] for row in (by_count[at - 1], by_count[at])),
            *ends_of_levels(counts.embeds, by_slope, _MOST_WITNESS_LEVELS),
        ]
    )
    rest = by_count[~np.isin(by_count, list(picked))]
    more = min(max(0, least - len(picked)), len(rest))
    by_chance = random.Random(_SEED).sample(range(len(rest)), more)  # noqa: S311
    return [counts.shapes[row] for row in (*picked, *(int(rest[place]) for place in by_chance))]
