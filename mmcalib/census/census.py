"""The histogram of the corpus's shapes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmcalib.domain.shape_columns import (
    COUNT_FIELDS,
    MAX_EXEMPLARS,
    Column,
    PathLists,
    ShapeCount,
    ShapeCounts,
    Shapes,
    equal_to_next,
    shape_rows,
)
from mmcalib.domain.shapes import (
    MODALITIES,
    PLAIN,
    EncodedItem,
    Encoding,
    Modality,
    Shape,
    is_size,
    to_row,
    weight,
)

_ROW = np.dtype([*COUNT_FIELDS, ("encoding", "i4")])


def merge_equal(keys: Sequence[Column], rows: Column, paths: PathLists) -> tuple[Column, Column]:
    """Merge rows with equal keys: add their counts, keep the first paths.

    Returns the index of each group's first row, in key order, and the merged rows.
    """
    order = np.lexsort(keys[::-1])
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = ~equal_to_next([key[order] for key in keys])
    starts = np.flatnonzero(begins)
    first = order[starts]
    merged = rows[first]
    if len(first) < len(rows):
        merged["count"] = np.add.reduceat(rows["count"][order], starts)
        sizes = np.diff(starts, append=len(order))
        for group in np.flatnonzero(sizes > 1):
            lists = rows["exemplars"][order[starts[group] : starts[group] + sizes[group]]]
            every = {path for at in lists for path in paths[at]}
            merged["exemplars"][group] = paths.add(sorted(every)[:MAX_EXEMPLARS])
    return first, merged


# Distinct keys counted in a dict before they move to the columns.
_RECENT = 1 << 15
# Unused lists of paths allowed before repacking.
_SPARE = 1 << 16


@dataclass(slots=True)
class _Tally:
    """A running count and its first paths, sorted."""

    count: int
    exemplars: list[str]

    def offer(self, paths: Sequence[str]) -> None:
        if len(self.exemplars) < MAX_EXEMPLARS or min(paths) < self.exemplars[-1]:
            self.exemplars = sorted({*self.exemplars, *paths})[:MAX_EXEMPLARS]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one modality, one per shape and encoding, sorted by both."""

    shapes: Shapes
    rows: Column


class Census:
    """The exact histogram of shapes, independent of the order of items.

    Files of one shape are also counted by encoding, for `encoded_counts` and `exclude_files`.
    Recent shapes are in a dict, the others in columns: about 80 bytes per shape.
    """

    def __init__(self) -> None:
        self._recent: dict[tuple[Shape, Encoding], _Tally] = {}
        # Parts of the columns, each at most half as long as the one before.
        self._parts: dict[Modality, list[_Rows]] = {}
        self._paths = PathLists()
        # Encodings are numbered from 0, in the order in which they were seen.
        self._numbers: dict[Encoding, int] = {}
        self._whole: dict[Modality, ShapeCounts] = {}

    @classmethod
    def of_encoded(cls, counts: Iterable[tuple[EncodedItem, ShapeCount]]) -> Census:
        """Build a census from the result of `encoded_counts`, in any order."""
        census = cls()
        for file, entry in counts:
            census._take((file.shape, file.encoding), entry.count, entry.exemplars)
        return census

    def add(self, shape: Shape, path: str, count: int = 1, encoding: Encoding = PLAIN) -> None:
        """Count an item, `count` times; `path` may become an exemplar."""
        self._take((shape, encoding), count, (path,))

    def encoded_counts(self) -> Iterator[tuple[EncodedItem, ShapeCount]]:
        """Yield the distinct pairs of shape and encoding with their counts, in a fixed order."""
        for modality in self.modalities():
            table, encodings = self._rows(modality), list(self._numbers)
            for shape, row in zip(table.shapes, table.rows, strict=True):
                count, at, number = row.item()
                file = EncodedItem(shape, encodings[number])
                yield file, ShapeCount(shape, count, self._paths[at])

    def exclude_files(self, refuses: Callable[[EncodedItem], object]) -> Census:
        """Return the census without the files for which `refuses` returns anything true."""
        return Census.of_encoded(one for one in self.encoded_counts() if not refuses(one[0]))

    def modalities(self) -> tuple[Modality, ...]:
        """Return the modalities that have items, in the order of `MODALITIES`."""
        present = {shape.modality for shape, _ in self._recent} | set(self._parts)
        return tuple(modality for modality in MODALITIES if modality in present)

    def items(self, modality: Modality | None = None) -> int:
        modalities = self.modalities() if modality is None else (modality,)
        return sum(self.counts(one).item_count() for one in modalities)

    def given_items(self, modality: Modality) -> int:
        """Count the items that have no file, only a size."""
        table = self._rows(modality)
        numbers = [number for encoding, number in self._numbers.items() if encoding.given]
        return int(table.rows["count"][np.isin(table.rows["encoding"], numbers)].sum())

    def counts(self, modality: Modality) -> ShapeCounts:
        """Return the distinct shapes of one modality with their counts, sorted by shape."""
        if modality not in self._whole:
            table = self._rows(modality)
            first, rows = merge_equal(table.shapes.columns, table.rows, self._paths)
            self._whole[modality] = ShapeCounts(table.shapes.take(first), rows, self._paths)
        return self._whole[modality]

    def shapes(self) -> Iterator[ShapeCount]:
        """Yield the distinct shapes with their counts, sorted by modality and shape."""
        for modality in self.modalities():
            yield from self.counts(modality)

    def _take(self, key: tuple[Shape, Encoding], count: int, paths: Sequence[str]) -> None:
        tally = self._recent.get(key)
        if tally is None:
            if len(self._recent) >= _RECENT:
                self._fold()
            self._whole.clear()
            tally = self._recent[key] = _Tally(0, [])
        tally.count += count
        tally.offer(paths)

    def _fold(self) -> None:
        """Move the recent counts to the columns."""
        for _, encoding in self._recent:
            self._numbers.setdefault(encoding, len(self._numbers))
        for modality in MODALITIES:
            recent = [item for item in self._recent.items() if item[0][0].modality == modality]
            if not recent:
                continue
            fields = (
                (tally.count, self._paths.add(tally.exemplars), self._numbers[encoding])
                for (_, encoding), tally in recent
            )
            shapes = shape_rows(modality, [shape for (shape, _), _ in recent])
            parts = self._parts.setdefault(modality, [])
            parts.append(self._merge(modality, shapes, np.fromiter(fields, _ROW, len(recent))))
            while len(parts) > 1 and 2 * len(parts[-1].rows) > len(parts[-2].rows):
                parts[-2:] = [self._join(modality, parts[-2:])]
        self._recent.clear()
        live = sum(len(part.rows) for parts in self._parts.values() for part in parts)
        if self._paths.lists > 2 * live + _SPARE:
            # Drop the lists of paths that no row uses any more.
            paths = PathLists()
            for rows in (part.rows for parts in self._parts.values() for part in parts):
                rows["exemplars"] = [paths.add(self._paths[at]) for at in rows["exemplars"]]
            self._paths = paths

    def _rows(self, modality: Modality) -> _Rows:
        if self._recent:
            self._fold()
        parts = self._parts.get(modality, [])
        if not parts:
            return _Rows(Shapes.from_shapes(modality, ()), np.empty(0, _ROW))
        if len(parts) > 1:
            parts[:] = [self._join(modality, parts)]
        return parts[0]

    def _join(self, modality: Modality, parts: Sequence[_Rows]) -> _Rows:
        shapes = np.concatenate([part.shapes.rows for part in parts])
        return self._merge(modality, shapes, np.concatenate([part.rows for part in parts]))

    def _merge(self, modality: Modality, shapes: Column, rows: Column) -> _Rows:
        keys = [*Shapes(modality, shapes).columns, self._ranks()[rows["encoding"]]]
        first, merged = merge_equal(keys, rows, self._paths)
        return _Rows(Shapes(modality, shapes[first]), merged)

    def _ranks(self) -> Column:
        """Return the rank of each encoding, by its number, among those known so far."""
        ranks = np.empty(len(self._numbers), dtype=np.int64)
        ranks[[self._numbers[encoding] for encoding in sorted(self._numbers)]] = range(len(ranks))
        return ranks


def shape_order(shape: Shape) -> tuple[Any, ...]:
    """Sort key for shapes of any modality."""
    return MODALITIES.index(shape.modality), *to_row(shape)[1:]


def choose_sample(census: Census, per_modality: int) -> list[tuple[Shape, str]]:
    """Choose at most `per_modality` distinct shapes of each modality, each with an example's path.

    The heaviest, longest, widest, tallest and smallest come first, then random ones. The choice
    depends only on the shapes of that modality. Items without a file are left out.
    """
    chosen: list[tuple[Shape, str]] = []
    for modality in census.modalities():
        counts = census.counts(modality)
        # The first of those that rank highest.
        picked = dict.fromkeys(
            max(enumerate(counts.shapes), key=lambda one: (rank(one[1]), -one[0]))[0]
            for rank in map(_RANKS.__getitem__, _EXTREMES[modality])
        )
        rest = [row for row in range(len(counts)) if row not in picked]
        # Reproducible, not secret.
        random.Random(f"0:{modality}").shuffle(rest)  # noqa: S311
        rows = [*picked, *rest][: max(0, per_modality)]
        chosen += [(counts.shapes[row], counts.exemplar_paths(row)[0]) for row in rows]
    return [one for one in chosen if not is_size(one[1])]


_RANKS: dict[str, Callable[[Any], float]] = {
    "weight": weight,
    "area": lambda shape: shape.width_px * shape.height_px,
    "duration": lambda shape: shape.duration_s,
    "aspect": lambda shape: shape.width_px / shape.height_px,
    "tallness": lambda shape: -(shape.width_px / shape.height_px),
    "lightness": lambda shape: -weight(shape),
}
_EXTREMES: dict[Modality, tuple[str, ...]] = {
    "image": ("weight", "aspect", "tallness", "lightness"),
    "video": ("weight", "area", "duration", "aspect", "tallness", "lightness"),
    "audio": ("weight", "duration", "lightness"),
}
