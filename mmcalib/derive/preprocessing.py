"""CPU seconds to load and process one item of the corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import linear_regression

import numpy as np

from mmcalib.derive.costs import CostColumns, CostTable
from mmcalib.domain.shapes import weight


def mean_cpu_s(table: CostTable) -> tuple[float, int] | None:
    """Mean seconds over the items of every modality with a measured file, and how many files were
    measured; None without any.
    """
    total_s, items, measured = 0.0, 0, 0
    for modality in table.modalities():
        costs = table.of(modality)
        rows = [row for row in np.flatnonzero(costs.has("real")).tolist() if costs[row].cpu_s]
        if rows:
            total_s += _total_s(costs, rows)
            items += costs.items()
            measured += len(rows)
    return (total_s / items, measured) if items else None


def _total_s(costs: CostColumns, rows: Sequence[int]) -> float:
    """Of all items of one modality. The shapes in `rows` count as measured, each other one by the
    line through the measured over what is decoded (`weight`).
    """
    real = [costs[row] for row in rows]
    line = cpu_line([(weight(cost.shape), cost.cpu_s) for cost in real])
    each = np.fromiter(map(line, costs.shapes.weights().tolist()), float, len(costs))
    each[rows] = [cost.cpu_s for cost in real]
    return float((costs.counts * each).sum())


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
