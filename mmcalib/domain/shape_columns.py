"""Many shapes in numpy arrays of named fields."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from operator import attrgetter
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mmcalib.domain.shapes import SHAPES, Modality, Shape

Column = NDArray[Any]

_PIXELS = ("width_px", "height_px")
# Rows turned into objects at a time.
BATCH_ROWS = 4096
# Cached positions: requests look up the same shapes again and again.
_MAX_CACHED = 1 << 16
_UNCACHED: Any = object()


class Shapes(Sequence[Shape]):
    """Distinct shapes of one modality, ascending, built on access from the fields in `rows`."""

    __slots__ = ("_positions", "modality", "rows")

    def __init__(self, modality: Modality, rows: Column) -> None:
        self.modality: Modality = modality
        self.rows = rows
        self._positions: dict[Shape, int | None] = {}

    @classmethod
    def from_shapes(cls, modality: Modality, shapes: Iterable[Shape]) -> Shapes:
        """Sort `shapes` into rows."""
        return cls(modality, shape_rows(modality, sorted(set(shapes))))

    @property
    def columns(self) -> list[Column]:
        """A column for each field, in order."""
        return [self.rows[name] for name in self.rows.dtype.names or ()]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> Shape: ...
    @overload
    def __getitem__(self, at: slice) -> Shapes: ...
    def __getitem__(self, at: int | slice) -> Shape | Shapes:
        if isinstance(at, slice):
            return Shapes(self.modality, self.rows[at])
        return SHAPES[self.modality](*self.rows[at].item())

    def __iter__(self) -> Iterator[Shape]:
        for start in range(0, len(self), BATCH_ROWS):
            rows = self.rows[start : start + BATCH_ROWS].tolist()
            yield from starmap(SHAPES[self.modality], rows)

    def __contains__(self, shape: object) -> bool:
        return isinstance(shape, SHAPES[self.modality]) and self.position(shape) is not None

    def position(self, shape: Shape) -> int | None:
        """Its position; None if absent or of another modality."""
        if shape.modality != self.modality:
            return None
        cached: int | None = self._positions.get(shape, _UNCACHED)
        if cached is not _UNCACHED:
            return cached
        if len(self._positions) >= _MAX_CACHED:
            self._positions.clear()
        low, high = 0, len(self)
        for name in self.rows.dtype.names or ():
            column, value = self.rows[name], getattr(shape, name)
            # Not numpy's search: it would copy the column.
            low = bisect_left(column, value, low, high)
            high = bisect_right(column, value, low, high)
        position = self._positions[shape] = low if low < high else None
        return position

    def positions(self, others: Sequence[Shape]) -> Column:
        """Positions of the others, -1 if absent."""
        if others is self:
            return np.arange(len(self))
        if not isinstance(others, Shapes):
            positions = (self.position(shape) for shape in others)
            return np.array([-1 if at is None else at for at in positions], dtype=np.int64)
        mine, theirs = self._keys(), others._keys()
        if mine is None or theirs is None:
            mine, theirs = self.rows, others.rows
        at = mine.searchsorted(theirs)
        known = at < len(self)
        known[known] = mine[at[known]] == theirs[known]
        at[~known] = -1
        return at

    def take(self, rows: Column) -> Shapes:
        """Select rows by ascending positions."""
        return self if len(rows) == len(self) else Shapes(self.modality, self.rows[rows])

    def weights(self) -> Column:
        """`mmcalib.domain.shapes.weight` of each shape."""
        names = {"audio": ("num_samples",), "image": _PIXELS, "video": ("num_frames", *_PIXELS)}
        columns = (self.rows[name].astype(float) for name in names[self.modality])
        return math.prod(columns, start=np.ones(len(self)))

    def aspect_ratios(self) -> Column:
        """Width over height of each shape, 0 for audio."""
        if self.modality == "audio":
            return np.zeros(len(self))
        width, height = (self.rows[name] for name in _PIXELS)
        slopes: Column = width / height
        return slopes

    def rounded_areas(self, unit: int) -> tuple[Column, Column]:
        """Pixels of images or frames, edges rounded to multiples of √`unit`: nearest, and up."""
        edge = math.isqrt(unit)
        nearest = np.full(len(self), unit, dtype=np.int64)
        above = nearest.copy()
        for name in _PIXELS:
            side = self.rows[name] / edge
            above *= np.ceil(side).astype(np.int64)
            nearest *= np.maximum(1, np.rint(side, out=side), out=side).astype(np.int64)
        return nearest, above

    def full_mask(self) -> Column:
        """Mask of all shapes."""
        return np.full(len(self), True)

    def _keys(self) -> Column | None:
        """One ascending number for each shape, if its two fields fit in four bytes each."""
        if self.modality == "video":
            return None
        first, second = self.columns
        if len(self) and max(first.max(), second.max()) >= 1 << 31:
            return None
        keys: Column = (first << 32) | second
        return keys


def shape_rows(modality: Modality, shapes: Sequence[Shape]) -> Column:
    """A row for each shape, in order."""
    of = fields(SHAPES[modality])
    kind = np.dtype([(field.name, "f8" if field.type == "float" else "i8") for field in of])
    return np.fromiter(map(attrgetter(*kind.names or ()), shapes), kind, len(shapes))


def equal_to_next(columns: Sequence[Column]) -> Column:
    """Mask of all rows but the last: equal to the next in every column."""
    same: Column = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
    return same


class PathLists:
    """Lists of paths by number, stored compactly. Lists are never removed: `lists` in all."""

    __slots__ = ("_folder_names", "_folders", "_text", "lists")

    def __init__(self) -> None:
        self.lists = 0
        self._text = bytearray()
        self._folders: dict[str, int] = {}
        self._folder_names: list[str] = []

    def add(self, paths: Sequence[str]) -> int:
        """Store the list and return its number."""
        at, self.lists = len(self._text), self.lists + 1
        parts: list[int | str] = []
        for path in paths:
            folder, slash, name = path.rpartition("/")
            number = self._folders.setdefault(folder + slash, len(self._folder_names))
            if number == len(self._folder_names):
                self._folder_names.append(folder + slash)
            parts += (number, name)
        self._text += json.dumps(parts).encode() + b"\n"
        return at

    def __getitem__(self, at: int) -> tuple[str, ...]:
        parts = json.loads(self._text[at : self._text.index(b"\n", at)])
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return tuple(self._folder_names[number] + name for number, name in pairs)


# Enough examples if one or two files are gone later.
MAX_EXEMPLARS = 3


@dataclass(frozen=True, slots=True)
class ShapeCount:
    """`count` items with `shape`; `exemplars` are the first of their paths in sorted order."""

    shape: Shape
    count: int
    exemplars: tuple[str, ...]


# The rows of `ShapeCounts`.
COUNT_FIELDS = (("count", "i8"), ("exemplars", "i8"))


class ShapeCounts:
    """Counts ascending by shape; `rows` has each `count`, and the number of its list in `paths`."""

    __slots__ = ("paths", "rows", "shapes")

    def __init__(self, shapes: Shapes, rows: Column, paths: PathLists) -> None:
        self.shapes, self.rows, self.paths = shapes, rows, paths

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> ShapeCount:
        return ShapeCount(self.shapes[at], self.counts[at].item(), self.exemplar_paths(at))

    def __iter__(self) -> Iterator[ShapeCount]:
        for shape, count, at in zip(self.shapes, self.counts, self.rows["exemplars"], strict=True):
            yield ShapeCount(shape, int(count), self.paths[at])

    @property
    def counts(self) -> Column:
        """Number of items of each shape."""
        return self.rows["count"]

    def count_of(self, shape: Shape) -> ShapeCount:
        """The row of this shape. Raises KeyError if absent."""
        row = self.shapes.position(shape)
        if row is None:
            raise KeyError(shape)
        return self[row]

    def exemplar_paths(self, row: int) -> tuple[str, ...]:
        """The example paths of one row."""
        return self.paths[self.rows["exemplars"][row]]

    def item_count(self) -> int:
        """Number of items of all shapes."""
        return int(self.counts.sum())
