"""The shapes of one modality and how many items have each, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from mmcalib.domain.path_lists import PathLists
from mmcalib.domain.shape_columns import Column, Shapes
from mmcalib.domain.shapes import Shape

# Enough to look at one, and at another when that is gone.
EXEMPLARS = 3


@dataclass(frozen=True, slots=True)
class ShapeCount:
    """`count` items have `shape`; `exemplars` are the first of their paths in sorted order."""

    shape: Shape
    count: int
    exemplars: tuple[str, ...]


class ShapeCounts(Sequence[ShapeCount]):
    """Ascending by shape. `counts` has the items of each row; `exemplars` their paths, as numbers
    of `paths`.
    """

    __slots__ = ("counts", "exemplars", "paths", "shapes")

    def __init__(self, shapes: Shapes, counts: Column, exemplars: Column, paths: PathLists) -> None:
        self.shapes, self.counts = shapes, counts
        self.exemplars, self.paths = exemplars, paths

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, at: int) -> ShapeCount: ...
    @overload
    def __getitem__(self, at: slice) -> ShapeCounts: ...
    def __getitem__(self, at: int | slice) -> ShapeCount | ShapeCounts:
        if isinstance(at, slice):
            return ShapeCounts(self.shapes[at], self.counts[at], self.exemplars[at], self.paths)
        return ShapeCount(self.shapes[at], self.counts[at].item(), self.paths_at(at))

    def __iter__(self) -> Iterator[ShapeCount]:
        for shape, count, at in zip(self.shapes, self.counts, self.exemplars, strict=True):
            yield ShapeCount(shape, int(count), self.paths[at])

    def of(self, shape: Shape) -> ShapeCount:
        """The row of one that is there."""
        row = self.shapes.place(shape)
        if row is None:
            raise KeyError(shape)
        return self[row]

    def paths_at(self, row: int) -> tuple[str, ...]:
        """The exemplars of one row."""
        return self.paths[self.exemplars[row]]

    def items(self) -> int:
        """Of all shapes."""
        return int(self.counts.sum())
