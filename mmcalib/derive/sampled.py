"""What a loader hands over of many items, a row of numbers each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mmcalib.domain.shape_columns import Column

# What four bytes hold.
_MOST = 2**31 - 1
# Stands where a row has no number.
_NONE = -1


def sampled_rows(tuples: Iterable[Sequence[int]]) -> Column:
    """As many columns as the longest has numbers."""
    every = list(tuples)
    width = max(map(len, every), default=0)
    rows = np.full((len(every), width), _NONE, dtype=np.int64)
    for row, numbers in enumerate(every):
        rows[row, : len(numbers)] = numbers
    return narrowed(rows)


def integers(values: Iterable[int]) -> Column:
    """In the fewest bytes that hold them all."""
    return narrowed(np.fromiter(values, dtype=np.int64))


def narrowed(column: Column) -> Column:
    """In four bytes each where that is enough."""
    enough = not column.size or (column.max() <= _MOST and column.min() >= -_MOST)
    return column.astype(np.int32) if enough else column


def sampled_tuples(rows: Column) -> Iterator[tuple[int, ...]]:
    """The reverse."""
    if rows.size and rows.min() > _NONE:
        yield from map(tuple, rows.tolist())
        return
    for numbers in rows.tolist():
        yield tuple(number for number in numbers if number != _NONE)


def widened(rows: Column, width: int) -> Column:
    """With at least so many columns."""
    more = width - rows.shape[1]
    return rows if more <= 0 else np.pad(rows, ((0, 0), (0, more)), constant_values=_NONE)


def same_rows(one: Column, other: Column) -> Column:
    """Of each row whether it is the same in both."""
    width = max(one.shape[1], other.shape[1])
    found: Column = (widened(one, width) == widened(other, width)).all(axis=1)
    return found
