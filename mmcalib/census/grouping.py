"""Rows of equal keys brought together, with their counts and the first of their paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmcalib.domain.path_lists import PathLists
from mmcalib.domain.shape_columns import Column, equal_to_next
from mmcalib.domain.shape_counts import EXEMPLARS


def grouped(keys: Sequence[Column]) -> tuple[Column, Column]:
    """The order in which rows of equal keys stand together, the first key first, and where in it
    each group begins.
    """
    order = np.lexsort(keys[::-1])
    begins = np.ones(len(order), dtype=bool)
    if len(order):
        begins[1:] = ~equal_to_next(key[order] for key in keys)
    return order, np.flatnonzero(begins)


def together(
    order: Column, starts: Column, counts: Column, exemplars: Column, paths: PathLists
) -> tuple[Column, Column]:
    """Of each group the counts of its rows added, and the first of their paths."""
    if not len(order):
        return counts, exemplars
    found, sizes = exemplars[order[starts]], np.diff(starts, append=len(order))
    for group in np.flatnonzero(sizes > 1):
        start = starts[group]
        rows = order[start : start + sizes[group]]
        every = {path for at in exemplars[rows] for path in paths[at]}
        found[group] = paths.add(sorted(every)[:EXEMPLARS])
    return np.add.reduceat(counts[order], starts), found
