"""Costs computed from vLLM's own count of an item's size, where spot checks bear it out.

Processing the pixels of every item for every value of a knob takes minutes; the count takes none.
It is used only where it reproduced everything that was processed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mmcalib.derive.costs import CostTable, ItemCost
from mmcalib.domain.shapes import AudioShape, Shape

# Shapes that are processed for each value, spread over what it changes.
SPOTS = 8
# Of costs with few levels, such as tiles: every level is looked at, at its flattest and tallest.
_MOST_LEVELS = 16


@dataclass(frozen=True, slots=True)
class VllmCount:
    """Embeds by vLLM's own count, what its loader would sample, and of how many parts its tensors
    are where that is known: tiles of an image that is cut by a list of resolutions, frames of a
    sound's features.
    """

    embeds: int
    sampled: tuple[int, ...]
    parts: int | None = None


Counts = Mapping[Shape, VllmCount]


def reproduces(counts: Counts, costs: Sequence[ItemCost]) -> bool:
    """Whether every one of these measured costs is as counted."""
    return all(
        c.shape in counts
        and (counts[c.shape].embeds, counts[c.shape].sampled) == (c.embeds, c.sampled)
        for c in costs
    )


def changed(counts: Counts, default: Sequence[ItemCost]) -> list[ItemCost]:
    """Those that are counted otherwise than they cost by default."""
    return [c for c in default if not reproduces(counts, [c])]


def spots(moved: Sequence[ItemCost], counts: Counts) -> list[Shape]:
    """Which of the changed shapes to process: the heaviest, lightest, flattest, tallest and others
    between, and of few levels each.
    """
    by_weight = sorted(moved, key=lambda c: (counts[c.shape].embeds, c.embeds, slope(c.shape)))
    by_slope = sorted(moved, key=lambda c: slope(c.shape))
    last = len(by_weight) - 1
    among = [by_weight[round(last * part / (SPOTS - 3))] for part in range(SPOTS - 2)]
    picked = [*among, by_slope[0], by_slope[-1]]
    levels: dict[int, list[ItemCost]] = {}
    for cost in by_slope:
        levels.setdefault(counts[cost.shape].embeds, []).append(cost)
    if len(levels) <= _MOST_LEVELS:
        picked += [cost for level in levels.values() for cost in (level[0], level[-1])]
    return list(dict.fromkeys(cost.shape for cost in picked))


def filled(
    table: CostTable, default: CostTable, counts: Counts, measured: Sequence[Shape]
) -> CostTable | None:
    """The table with every changed shape that was not measured computed from its count; None where
    a measured one is not as counted, or its tokens beside the embeds follow no known rule.
    """
    seen = [table.costs[shape] for shape in measured if shape in table.costs]
    if len(seen) < len(measured) or not reproduces(counts, seen):
        return None
    known = set(measured)
    moved = [c for c in changed(counts, [default.costs[s] for s in counts]) if c.shape not in known]
    beside = _beside(seen, default, counts)
    slower = _slower(seen, default)
    costs = dict(table.costs)
    for before in moved:
        count = counts[before.shape]
        text = beside(before)
        if text is None:
            return None
        share = count.embeds / before.embeds if before.embeds else 1.0
        costs[before.shape] = ItemCost(
            shape=before.shape,
            count=before.count,
            exemplar=before.exemplar,
            tokens=count.embeds + text,
            embeds=count.embeds,
            tensor_bytes=round(before.tensor_bytes * share),
            process_s=before.process_s * slower,
            sampled=count.sampled,
            basis="counted",
            cpu_s=before.cpu_s,
        )
    return replace(table, costs=costs)


def _beside(
    seen: Sequence[ItemCost], default: CostTable, counts: Counts
) -> Callable[[ItemCost], int | None]:
    """The prompt's tokens beside an item's embeds: as many as by default, or as many as every
    measured item of the same embeds has.
    """
    if all(_text(cost) == _text(default.costs[cost.shape]) for cost in seen):
        return _text
    levels: dict[int, set[int]] = {}
    for cost in seen:
        levels.setdefault(cost.embeds, set()).add(_text(cost))

    def of_level(before: ItemCost) -> int | None:
        found = levels.get(counts[before.shape].embeds, set())
        return next(iter(found)) if len(found) == 1 else None

    return of_level


def _text(cost: ItemCost) -> int:
    return cost.tokens - cost.embeds


def _slower(seen: Sequence[ItemCost], default: CostTable) -> float:
    """How much longer the measured items took than by default."""
    before = sum(default.costs[cost.shape].process_s for cost in seen)
    return sum(cost.process_s for cost in seen) / before if before else 1.0


def slope(shape: Shape) -> float:
    """How flat it is."""
    return 0.0 if isinstance(shape, AudioShape) else shape.width_px / shape.height_px
