"""The census: which shapes a corpus holds, and how many items of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from mmcalib.domain.encoding import PLAIN, Encoded, Encoding
from mmcalib.domain.shapes import (
    MODALITIES,
    AudioShape,
    ImageShape,
    Modality,
    Shape,
    VideoShape,
)

# Enough to look at one, and at another when that is gone.
EXEMPLARS = 3


@dataclass(frozen=True, slots=True)
class ShapeCount:
    """`count` items have `shape`; `exemplars` are the first of their paths in sorted order."""

    shape: Shape
    count: int
    exemplars: tuple[str, ...]


@dataclass(slots=True)
class _Tally:
    """A count under way, and the first paths, sorted."""

    count: int
    exemplars: list[str]

    def offer(self, paths: Iterable[str]) -> None:
        self.exemplars = sorted({*self.exemplars, *paths})[:EXEMPLARS]


Refuses = Callable[[Encoded], object]
"""Whether a server refuses such a file: anything true."""


class Census:
    """The exact histogram of shapes. Adding and merging give the same in any order.

    Files of one shape are counted apart by how they hold it, for `encoded` and `without` alone.
    """

    def __init__(self, counts: Iterable[ShapeCount] = ()) -> None:
        self._counts: dict[tuple[Shape, Encoding], _Tally] = {}
        for entry in counts:
            self._take((entry.shape, PLAIN), entry.count, entry.exemplars)

    def add(self, shape: Shape, path: str, count: int = 1, encoding: Encoding = PLAIN) -> None:
        """Count an item, `count` times; `path` may become an exemplar."""
        tally = self._counts.get((shape, encoding))
        if tally is None:
            self._counts[shape, encoding] = _Tally(count, [path])
            return
        tally.count += count
        if len(tally.exemplars) < EXEMPLARS or path < tally.exemplars[-1]:
            tally.offer([path])

    def merge(self, other: Census) -> Census:
        """census(A) and census(B) give census(A∪B); neither is changed."""
        merged = Census()
        for one in (self, other):
            for key, tally in one._counts.items():
                merged._take(key, tally.count, tally.exemplars)
        return merged

    def encoded(self) -> Iterator[tuple[Encoded, ShapeCount]]:
        """The distinct ways in which files hold their shapes, in a fixed order."""
        for shape, encoding in sorted(self._counts, key=_key_order):
            tally = self._counts[shape, encoding]
            found = ShapeCount(shape, tally.count, tuple(tally.exemplars))
            yield Encoded(shape, encoding), found

    def without(self, refuses: Refuses) -> Census:
        """The census of the other files."""
        left = Census()
        for key, tally in self._counts.items():
            if not refuses(Encoded(*key)):
                left._take(key, tally.count, tally.exemplars)
        return left

    def modalities(self) -> tuple[Modality, ...]:
        """Those that have items, in the order of `MODALITIES`."""
        present = {shape.modality for shape, _ in self._counts}
        return tuple(modality for modality in MODALITIES if modality in present)

    def items(self, modality: Modality | None = None) -> int:
        """The number of items, of one modality or of all."""
        return sum(
            tally.count
            for (shape, _), tally in self._counts.items()
            if modality in (None, shape.modality)
        )

    def shapes(self, modality: Modality | None = None) -> Iterator[ShapeCount]:
        """The distinct shapes with their counts, by modality, then in ascending order."""
        kept = (key for key in self._counts if modality in (None, key[0].modality))
        for shape, keys in groupby(sorted(kept, key=_shape_order), key=_shape):
            tallies = [self._counts[key] for key in keys]
            paths = {path for tally in tallies for path in tally.exemplars}
            count = sum(tally.count for tally in tallies)
            yield ShapeCount(shape, count, tuple(sorted(paths)[:EXEMPLARS]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Census) and list(self.shapes()) == list(other.shapes())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = (f"{modality}: {self.items(modality)}" for modality in self.modalities())
        return f"Census({', '.join(parts)})"

    def _take(self, key: tuple[Shape, Encoding], count: int, paths: Iterable[str]) -> None:
        tally = self._counts.setdefault(key, _Tally(0, []))
        tally.count += count
        tally.offer(paths)


def _shape(key: tuple[Shape, Encoding]) -> Shape:
    return key[0]


def _shape_order(key: tuple[Shape, Encoding]) -> tuple[float, ...]:
    return shape_order(key[0])


def _key_order(key: tuple[Shape, Encoding]) -> tuple[tuple[float, ...], Encoding]:
    return shape_order(key[0]), key[1]


def shape_order(shape: Shape) -> tuple[float, ...]:
    """A sort key for shapes of any modality."""
    match shape:
        case ImageShape():
            return 0, shape.width_px, shape.height_px
        case VideoShape():
            frames, size = (shape.num_frames, shape.fps), (shape.width_px, shape.height_px)
            return 1, *frames, shape.duration_s, *size
        case AudioShape():
            return 2, shape.num_samples, shape.sample_rate_hz
