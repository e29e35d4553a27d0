"""Many shapes in numpy columns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mmcalib.domain.shapes import SHAPES, Modality, Shape

Column = NDArray[Any]

_PAIR = ("width_px", "height_px")
# Rows that are made into objects at a time.
_AT_A_TIME = 4096
# Places of shapes that are asked for again and again, such as those that requests name.
_MOST_KNOWN = 1 << 16
_UNASKED: Any = object()


class Shapes(Sequence[Shape]):
    """Distinct shapes of one modality, ascending; each is made when it is asked for.

    `columns` hold their fields by name, one number for each shape.
    """

    __slots__ = ("_known", "columns", "modality")

    def __init__(self, modality: Modality, columns: Mapping[str, Column]) -> None:
        self.modality: Modality = modality
        self.columns = dict(columns)
        self._known: dict[Shape, int | None] = {}

    @classmethod
    def of(cls, modality: Modality, shapes: Iterable[Shape]) -> Shapes:
        """These, in whatever order they come."""
        ordered = sorted(set(shapes))
        return cls(modality, columns_of(modality, ordered))

    @classmethod
    def joined(cls, parts: Sequence[Shapes]) -> Shapes:
        """Each part ascending behind the one before."""
        names = parts[0].columns
        every = {n: np.concatenate([one.columns[n] for one in parts]) for n in names}
        return cls(parts[0].modality, every)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @overload
    def __getitem__(self, at: int) -> Shape: ...
    @overload
    def __getitem__(self, at: slice) -> Shapes: ...
    def __getitem__(self, at: int | slice) -> Shape | Shapes:
        if isinstance(at, slice):
            return Shapes(self.modality, {n: column[at] for n, column in self.columns.items()})
        return SHAPES[self.modality](*(column[at].item() for column in self.columns.values()))

    def __iter__(self) -> Iterator[Shape]:
        made = SHAPES[self.modality]
        for start in range(0, len(self), _AT_A_TIME):
            some = (c[start : start + _AT_A_TIME].tolist() for c in self.columns.values())
            yield from map(made, *some)

    def __contains__(self, shape: object) -> bool:
        return isinstance(shape, SHAPES[self.modality]) and self.place(shape) is not None

    def place(self, shape: Shape) -> int | None:
        """Where it stands; None where it does not, as one of another modality."""
        if shape.modality != self.modality:
            return None
        known: int | None = self._known.get(shape, _UNASKED)
        if known is not _UNASKED:
            return known
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        found = self._known[shape] = self._place(shape)
        return found

    def places(self, others: Sequence[Shape]) -> Column:
        """Where each of these stands, -1 for one that does not."""
        if others is self:
            return np.arange(len(self))
        if not isinstance(others, Shapes):
            found = (self.place(shape) for shape in others)
            return np.array([-1 if at is None else at for at in found], dtype=np.int64)
        mine, theirs = self._keys(), others._keys()
        if mine is not None and theirs is not None:
            at = mine.searchsorted(theirs)
            at[at == len(mine)] = 0
            if not len(mine):
                return np.full(len(theirs), -1)
            at[mine[at] != theirs] = -1
            return at
        both = [np.concatenate([c, others.columns[n]]) for n, c in self.columns.items()]
        # Of two equal ones the first is mine: the sort is stable.
        order = np.lexsort(both[::-1])
        same = equal_to_next(column[order] for column in both)
        at = np.full(len(others), -1, dtype=np.int64)
        at[order[1:][same] - len(self)] = order[:-1][same]
        return at

    def take(self, rows: Column) -> Shapes:
        """Some of them, by ascending places."""
        if len(rows) == len(self):
            return self
        return Shapes(self.modality, {n: column[rows] for n, column in self.columns.items()})

    def weights(self) -> Column:
        """`mmcalib.domain.shapes.weight` of each."""
        c = self.columns
        match self.modality:
            case "audio":
                return c["num_samples"].astype(float)
            case "image":
                return c["width_px"].astype(float) * c["height_px"]
            case "video":
                return c["num_frames"].astype(float) * c["width_px"] * c["height_px"]

    def slopes(self) -> Column:
        """How flat each is, 0 for sound."""
        if self.modality == "audio":
            return np.zeros(len(self))
        return self.columns["width_px"] / self.columns["height_px"]

    def areas(self, unit: int) -> tuple[Column, Column]:
        """The pixels that each takes when its edges are rounded to multiples of √`unit`: to the
        nearest, and to the one above. 0 for sound.
        """
        if self.modality == "audio":
            none = np.zeros(len(self), dtype=np.int64)
            return none, none
        edge = math.isqrt(unit)
        nearest = np.full(len(self), unit, dtype=np.int64)
        above = nearest.copy()
        for name in ("width_px", "height_px"):
            side = self.columns[name] / edge
            above *= np.ceil(side).astype(np.int64)
            nearest *= np.maximum(1, np.rint(side, out=side), out=side).astype(np.int64)
        return nearest, above

    def mask(self, value: bool) -> Column:
        """The same of each."""
        return np.full(len(self), value)

    def _keys(self) -> Column | None:
        """One number for each shape, ascending, where two of four bytes make it up."""
        if len(self.columns) != len(_PAIR):
            return None
        first, second = self.columns.values()
        if len(self) and max(first.max(), second.max()) >= 1 << 31:
            return None
        keys: Column = (first << 32) | second
        return keys

    def _place(self, shape: Shape) -> int | None:
        low, high = 0, len(self)
        for name, column in self.columns.items():
            value, part = getattr(shape, name), column[low:high]
            low, high = (
                low + int(part.searchsorted(value)),
                low + int(part.searchsorted(value, side="right")),
            )
            if low == high:
                return None
        return low


def columns_of(modality: Modality, shapes: Sequence[Shape]) -> dict[str, Column]:
    """A column for each of their fields, in their order."""
    kinds = {
        field.name: float if field.type == "float" else np.int64 for field in _fields(modality)
    }
    return {
        name: np.fromiter((getattr(s, name) for s in shapes), dtype=kind, count=len(shapes))
        for name, kind in kinds.items()
    }


def _fields(modality: Modality) -> tuple[Any, ...]:
    return fields(SHAPES[modality])


def equal_to_next(columns: Iterable[Column]) -> Column:
    """Of each row but the last, whether the next is the same in all columns."""
    found: Column | None = None
    for column in columns:
        same = column[1:] == column[:-1]
        found = same if found is None else found & same
    if found is None:
        raise ValueError("no columns")
    return found


class PathLists:
    """Each list is known by a number. What nobody asks for any more stays: `lists` in all."""

    __slots__ = ("_folders", "_named", "_text", "lists")

    def __init__(self) -> None:
        self.lists = 0
        self._text = bytearray()
        self._folders: dict[str, int] = {}
        self._named: list[str] = []

    def add(self, paths: Sequence[str]) -> int:
        """The number of the list."""
        at, self.lists = len(self._text), self.lists + 1
        parts: list[int | str] = []
        for path in paths:
            folder, slash, name = path.rpartition("/")
            parts += (self._folder(folder + slash), name)
        self._text += json.dumps(parts).encode() + b"\n"
        return at

    def __getitem__(self, at: int) -> tuple[str, ...]:
        parts = json.loads(self._text[at : self._text.index(b"\n", at)])
        return tuple(
            self._named[folder] + name for folder, name in zip(parts[::2], parts[1::2], strict=True)
        )

    def _folder(self, path: str) -> int:
        number = self._folders.get(path)
        if number is None:
            number = self._folders[path] = len(self._named)
            self._named.append(path)
        return number


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
