"""Costs computed from vLLM's own count of an item's size, where spot checks bear it out.

Processing the pixels of every item for every value of a knob takes minutes; the count takes none.
It is used only where it reproduced everything that was processed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mmcalib.derive.cost_columns import CostColumns
from mmcalib.derive.costs import CostTable
from mmcalib.derive.sampled import same_rows
from mmcalib.derive.vllm_counts import VllmCounts
from mmcalib.domain.shape_columns import Column
from mmcalib.domain.shapes import Shape

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
    same = counts.embeds[rows] == costs.embeds[known]
    found[known] = same & same_rows(counts.sampled[rows], costs.sampled[known])
    return found


def reproduces(counts: VllmCounts, costs: CostColumns) -> bool:
    """Whether every one of these measured costs is as counted."""
    return bool(as_counted(counts, costs).all())


def spots(costs: CostColumns, moved: Column, counts: VllmCounts) -> list[Shape]:
    """Which of the changed shapes to process, of these rows of `costs`: the heaviest, lightest,
    flattest, tallest and others between, and of few levels each.
    """
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


def filled(
    table: CostTable, default: CostTable, counts: VllmCounts, measured: Sequence[Shape]
) -> CostTable | None:
    """The table with every changed shape that was not measured computed from its count; None where
    a measured one is not as counted, or its tokens beside the embeds follow no known rule.
    """
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
    share = np.divide(embeds, before, out=np.ones(len(rows)), where=before > 0)
    columns = now.counted(
        now.shapes.places(usual.shapes.take(rows)),
        tokens=embeds + beside,
        embeds=embeds,
        tensor_bytes=np.rint(usual.tensor_bytes[rows] * share).astype(np.int64),
        process_s=usual.process_s[rows] * _slower(seen, spotted),
        sampled=counts.sampled[left],
    )
    return replace(table, columns={**table.columns, modality: columns})


def _beside(
    seen: CostColumns, usual: CostColumns, by_default: Column, embeds: Column
) -> Column | None:
    """The prompt's tokens beside an item's embeds: as many as by default, or as many as every
    measured item of the same embeds has. None where one has neither.
    """
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


def _slower(seen: CostColumns, usual: CostColumns) -> float:
    """How much longer the measured items took than by default."""
    before = float(usual.process_s.sum())
    return float(seen.process_s.sum()) / before if before else 1.0
