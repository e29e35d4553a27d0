"""How fast items can be fed to an encoder, and by how many processor cores."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import linear_regression

import numpy as np

from mmcalib.derive.cost_columns import CostColumns
from mmcalib.derive.item_cost import ItemCost
from mmcalib.domain.shapes import weight


@dataclass(frozen=True, slots=True)
class CpuCost:
    """Mean processor seconds to load and process one of `items`, from `measured` real files;
    `costliest` is the one of these that took most.
    """

    items: int
    measured: int
    mean_s: float
    costliest: ItemCost


@dataclass(frozen=True, slots=True)
class Batch:
    """Seconds to encode `items` equal items with `tokens` in all."""

    items: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EncoderCost:
    """Mean seconds to encode one of the items by itself, and at least so many in any batch."""

    mean_s: float
    least_s: float


def cpu_cost(costs: CostColumns) -> CpuCost | None:
    """Of items of one modality. A shape that was measured counts as measured, each other one by the
    line through the measured over what is decoded (`weight`). None without measured files.
    """
    rows = [row for row in np.flatnonzero(costs.has("real")).tolist() if row in costs.cpu_s]
    if not rows:
        return None
    real = [costs[row] for row in rows]
    line = cpu_line([(weight(cost.shape), cost.cpu_s) for cost in real])
    each = np.fromiter(map(line, costs.shapes.weights().tolist()), float, len(costs))
    each[rows] = [cost.cpu_s for cost in real]
    costliest = max(real, key=lambda cost: (cost.cpu_s, cost.exemplar))
    mean_s = float((costs.counts * each).sum()) / costs.items()
    return CpuCost(costs.items(), len(real), mean_s, costliest)


def cpu_line(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """Least squares of seconds over weight, with neither a start nor a slope below zero: no item
    costs less than nothing, and none less for being larger. In proportion, of one weight alone.
    """
    weights, seconds = zip(*points, strict=True)
    mean = sum(seconds) / len(seconds)
    slope, start = 0.0, mean
    if len(set(weights)) > 1:
        slope, start = linear_regression(weights, seconds)
    if slope < 0:
        slope, start = 0.0, mean
    elif any(weights) and (start < 0 or len(set(weights)) == 1):
        slope, start = sum(w * s for w, s in points) / sum(w * w for w in weights), 0.0
    return lambda of: start + slope * of


def encoder_cost(costs: CostColumns, batches: Iterable[Batch]) -> EncoderCost | None:
    """Of items of one modality; None where no single item was encoded.

    Alone: between two encoded sizes seconds go straight from one to the other; items below the
    smallest take what it takes, those above the largest in proportion to their tokens. At least:
    items smaller than the batch with the fewest seconds per token fill such batches, unless the
    batches of several show that items take seconds each, whatever their tokens (padding).
    """
    tried = [b for b in batches if b.tokens]
    single = sorted({b.tokens: b.seconds for b in tried if b.items == 1}.items())
    items = costs.items()
    if not single or not items:
        return None
    best = min(tried, key=lambda b: b.seconds / b.tokens)
    rate = best.seconds / best.tokens
    seen = [b.seconds / (b.tokens * rate) for b in tried if b.items > 1] if rate else []
    each = min(seen, default=1.0)

    def least(tokens: int) -> float:
        alone = _between(single, tokens)
        return alone if tokens >= best.tokens else min(alone, each * rate * tokens)

    embeds, rows = np.unique(costs.embeds, return_inverse=True)
    counts = np.bincount(rows, costs.counts).tolist()
    every = list(zip(embeds.tolist(), counts, strict=True))
    total = sum(count * _between(single, tokens) for tokens, count in every)
    return EncoderCost(total / items, sum(n * least(tokens) for tokens, n in every) / items)


def _between(points: Sequence[tuple[int, float]], tokens: float) -> float:
    place = bisect_left(points, tokens, key=lambda point: point[0])
    if place == 0:
        return points[0][1]
    before, seconds = points[place - 1]
    if place == len(points):
        return seconds * tokens / before
    after, later = points[place]
    return seconds + (later - seconds) * (tokens - before) / (after - before)
