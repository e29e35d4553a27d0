"""Cost of items: rows, columns, tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from mmcalib.derive.item_cost import BASES, Basis, ItemCost, heaviest
from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import RefusedBy
from mmcalib.domain.shape_columns import Column, ShapeCounts, Shapes
from mmcalib.domain.shapes import MODALITIES, Modality, Shape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exemplars(Sequence[str]):
    """A path for each row: that of `rows` in the census, except for those that are `named`."""

    census: ShapeCounts | None
    rows: Column
    named: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(len(self)))]
        path = self.named.get(at)
        if path is None and self.census is not None:
            path = self.census.paths_at(self.rows[at])[0]
        return path or ""

    def take(self, rows: Column) -> Exemplars:
        """Of these rows, ascending."""
        return Exemplars(self.census, self.rows[rows], renumbered(self.named, rows))


def renumbered(values: Mapping[int, T], rows: Column) -> dict[int, T]:
    """By the new places of these rows, which are ascending."""
    places = rows.searchsorted(list(values)).tolist() if values else []
    return {
        at: value
        for at, (row, value) in zip(places, values.items(), strict=True)
        if at < len(rows) and rows[at] == row
    }


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


_COUNTED, _UNCHANGED = BASES.index("counted"), BASES.index("unchanged")
_AT_A_TIME = 4096


@dataclass(frozen=True, eq=False)
class CostColumns(Sequence[ItemCost]):
    """A row for each shape, ascending; fields as those of `ItemCost`, which are made when asked
    for. `bases` are places in `BASES`; `cpu_s` has the rows of real items alone. What is added up
    or multiplied, counts and bytes, has eight bytes for each; tokens and embeds have four.
    """

    shapes: Shapes
    counts: Column
    exemplars: Exemplars
    tokens: Column
    embeds: Column
    tensor_bytes: Column
    process_s: Column
    sampled: Column
    bases: Column
    cpu_s: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, modality: Modality, costs: Iterable[ItemCost]) -> CostColumns:
        """These, in whatever order they come; each shape once."""
        rows = sorted(costs, key=lambda cost: cost.shape)
        return cls(
            Shapes.of(modality, [cost.shape for cost in rows]),
            np.array([cost.count for cost in rows], dtype=np.int64),
            Exemplars(None, np.arange(len(rows)), {n: c.exemplar for n, c in enumerate(rows)}),
            integers(cost.tokens for cost in rows),
            integers(cost.embeds for cost in rows),
            np.array([cost.tensor_bytes for cost in rows], dtype=np.int64),
            np.array([cost.process_s for cost in rows], dtype=float),
            sampled_rows(cost.sampled for cost in rows),
            np.array([BASES.index(cost.basis) for cost in rows], dtype=np.int8),
            {n: cost.cpu_s for n, cost in enumerate(rows) if cost.cpu_s},
        )

    @classmethod
    def waiting(cls, entries: ShapeCounts) -> CostColumns:
        """Of all these shapes, nothing known yet."""
        none = np.zeros(len(entries), dtype=np.int32)
        return cls(
            entries.shapes,
            entries.counts,
            Exemplars(entries, np.arange(len(entries), dtype=np.int32)),
            tokens=none,
            embeds=none,
            tensor_bytes=none.astype(np.int64),
            process_s=none.astype(float),
            sampled=np.empty((len(entries), 0), dtype=np.int32),
            bases=np.full(len(entries), BASES.index("blank"), dtype=np.int8),
        )

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, at: int) -> ItemCost: ...
    @overload
    def __getitem__(self, at: slice) -> CostColumns: ...
    def __getitem__(self, at: int | slice) -> ItemCost | CostColumns:
        rows = range(len(self))[at]
        if isinstance(rows, range):
            return self.take(np.arange(len(self))[at])
        return next(self._made(rows, rows + 1))

    def __iter__(self) -> Iterator[ItemCost]:
        for start in range(0, len(self), _AT_A_TIME):
            yield from self._made(start, min(start + _AT_A_TIME, len(self)))

    def _made(self, start: int, end: int) -> Iterator[ItemCost]:
        part = slice(start, end)
        yield from map(
            ItemCost,
            self.shapes[part],
            self.counts[part].tolist(),
            self.exemplars[part],
            self.tokens[part].tolist(),
            self.embeds[part].tolist(),
            self.tensor_bytes[part].tolist(),
            self.process_s[part].tolist(),
            sampled_tuples(self.sampled[part]) if self.sampled.shape[1] else repeat(()),
            (BASES[basis] for basis in self.bases[part].tolist()),
            (self.cpu_s.get(row, 0.0) for row in range(start, end)),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostColumns) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def modality(self) -> Modality:
        return self.shapes.modality

    def items(self) -> int:
        """Of all shapes."""
        return int(self.counts.sum())

    @cached_property
    def heaviest(self) -> ItemCost | None:
        """The item that takes most of the encoder cache; ties by path, so that it is stable."""
        return self.heaviest_of(np.arange(len(self)))

    def heaviest_of(self, rows: Column) -> ItemCost | None:
        """The same of these rows alone."""
        for column in (self.embeds, self.tokens):
            of = column[rows]
            rows = rows[of == of.max(initial=0)]
        return heaviest(self.take(rows))

    def has(self, basis: Basis) -> Column:
        """Which rows have it."""
        found: Column = self.bases == BASES.index(basis)
        return found

    def take(self, rows: Column) -> CostColumns:
        """These rows, by ascending places or by a mask."""
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        if len(rows) == len(self):
            return self
        return CostColumns(
            self.shapes.take(rows),
            self.counts[rows],
            self.exemplars.take(rows),
            self.tokens[rows],
            self.embeds[rows],
            self.tensor_bytes[rows],
            self.process_s[rows],
            self.sampled[rows],
            self.bases[rows],
            renumbered(self.cpu_s, rows),
        )

    def unchanged(self) -> CostColumns:
        """The same under a setting that changes none of them."""
        return replace(self, bases=_put(self.bases, self.bases != _COUNTED, np.int8(_UNCHANGED)))

    def counted(
        self,
        rows: Column,
        *,
        tokens: Column,
        embeds: Column,
        tensor_bytes: Column,
        process_s: Column,
        sampled: Column,
    ) -> CostColumns:
        """With these rows as they were counted; all columns are of `rows` alone."""
        width = max(sampled.shape[1], self.sampled.shape[1])
        return replace(
            self,
            tokens=_put(self.tokens, rows, tokens),
            embeds=_put(self.embeds, rows, embeds),
            tensor_bytes=_put(self.tensor_bytes, rows, tensor_bytes),
            process_s=_put(self.process_s, rows, process_s),
            sampled=_put(widened(self.sampled, width), rows, widened(sampled, width)),
            bases=_put(self.bases, rows, np.int8(_COUNTED)),
        )

    def but(self, others: Mapping[Shape, ItemCost | None]) -> CostColumns:
        """With these rows instead of those of equal shapes, or without where there is None."""
        if not others:
            return self
        places = ((self.shapes.place(shape), cost) for shape, cost in others.items())
        known = {row: cost for row, cost in places if row is not None}
        new = [c for shape, c in others.items() if c is not None and shape not in self.shapes]
        changed = {row: cost for row, cost in known.items() if cost is not None}
        found = self._with_rows(changed) if changed else self
        if gone := known.keys() - changed.keys():
            kept = np.ones(len(self), dtype=bool)
            kept[list(gone)] = False
            found = found.take(kept)
        # Only what a stand-in was refused for, and the real item is not.
        return CostColumns.of(self.modality, [*found, *new]) if new else found

    def _with_rows(self, costs: Mapping[int, ItemCost]) -> CostColumns:
        rows, of = np.array(list(costs), dtype=np.int64), list(costs.values())
        given = sampled_rows(cost.sampled for cost in of)
        width = max(given.shape[1], self.sampled.shape[1])
        named = dict(self.exemplars.named) | {row: c.exemplar for row, c in costs.items()}
        cpu_s = {row: seconds for row, seconds in self.cpu_s.items() if row not in costs}
        return replace(
            self,
            counts=_put(self.counts, rows, [cost.count for cost in of]),
            exemplars=replace(self.exemplars, named=named),
            tokens=_put(self.tokens, rows, [cost.tokens for cost in of]),
            embeds=_put(self.embeds, rows, [cost.embeds for cost in of]),
            tensor_bytes=_put(self.tensor_bytes, rows, [cost.tensor_bytes for cost in of]),
            process_s=_put(self.process_s, rows, [cost.process_s for cost in of]),
            sampled=_put(widened(self.sampled, width), rows, widened(given, width)),
            bases=_put(self.bases, rows, np.array([BASES.index(c.basis) for c in of], np.int8)),
            cpu_s=cpu_s | {row: cost.cpu_s for row, cost in costs.items() if cost.cpu_s},
        )


def _put(column: Column, rows: Column, values: ArrayLike) -> Column:
    """The column with these values in these rows; itself where it has them."""
    given = np.asarray(values)
    if np.array_equal(column[rows], given):
        return column
    # A column of integers stays one, in as many bytes as are needed.
    given = narrowed(given) if given.dtype.kind == "i" else given
    kind = np.promote_types(column.dtype, given.dtype) if given.size else column.dtype
    changed = column.astype(kind)
    changed[rows] = given
    return changed


class CostMap(Mapping[Shape, ItemCost]):
    """The costs of several modalities, by shape."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[Modality, CostColumns]) -> None:
        self.columns = columns

    def __getitem__(self, shape: Shape) -> ItemCost:
        found = self._found(shape)
        if found is None:
            raise KeyError(shape)
        columns, row = found
        return columns[row]

    def tokens(self, shape: Shape) -> int | None:
        """Of one item; None where it has no cost."""
        found = self._found(shape)
        if found is None:
            return None
        columns, row = found
        return int(columns.tokens[row])

    def __contains__(self, shape: object) -> bool:
        return isinstance(shape, Shape) and self._found(shape) is not None

    def _found(self, shape: Shape) -> tuple[CostColumns, int] | None:
        columns = self.columns.get(shape.modality)
        row = None if columns is None else columns.shapes.place(shape)
        return None if columns is None or row is None else (columns, row)

    def __iter__(self) -> Iterator[Shape]:
        for columns in self.columns.values():
            yield from columns.shapes

    def __len__(self) -> int:
        return sum(map(len, self.columns.values()))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Every item of this shape is refused, for this reason."""

    shape: Shape
    count: int
    exemplar: str
    reason: str
    by: RefusedBy = "vllm"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A blank stand-in and the real item of equal shape differ; the real one wins."""

    exemplar: str
    shape: Shape
    real_tokens: int
    blank_tokens: int
    why: str


@dataclass(frozen=True, slots=True)
class Resampled:
    """Samples of a real sound at the model's rate, by vLLM's loader and by librosa."""

    exemplar: str
    vllm_samples: int
    librosa_samples: int


@dataclass(frozen=True, slots=True)
class CostTable:
    """All costs under one setting, of each modality that has any.

    `compared` real items were loaded and held against their stand-ins; `failed` of each modality
    could not be loaded by vLLM, though a stand-in of their shape could; so many are `out_of_reach`
    from here. `witnesses`: so many stand-ins were processed of a modality whose other shapes are
    counted.
    """

    setting: Setting
    columns: Mapping[Modality, CostColumns]
    refusals: tuple[Refusal, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    compared: int = 0
    failed: dict[Modality, int] = field(default_factory=dict)
    witnesses: dict[Modality, int] = field(default_factory=dict)
    out_of_reach: int = 0
    resampled: tuple[Resampled, ...] = ()

    @property
    def costs(self) -> CostMap:
        """By shape."""
        return CostMap(self.columns)

    def of(self, modality: Modality) -> CostColumns:
        """The costs of one modality, ascending by shape."""
        return self.columns.get(modality) or CostColumns.of(modality, ())

    def modalities(self) -> tuple[Modality, ...]:
        return tuple(m for m in MODALITIES if self.of(m))

    def items(self) -> int:
        """How many there are of all shapes."""
        return sum(columns.items() for columns in self.columns.values())

    def most_embeds(self) -> dict[Modality, int]:
        """Of the largest item of each modality."""
        return {m: int(self.of(m).embeds.max()) for m in self.modalities()}

    @property
    def largest_embeds(self) -> int:
        """Of any item."""
        return max(self.most_embeds().values(), default=0)

    def heaviest(self, modality: Modality) -> ItemCost | None:
        """The item that takes most of the encoder cache; ties by path, so that it is stable."""
        return self.of(modality).heaviest

    def largest(self) -> ItemCost | None:
        """The heaviest of all modalities."""
        return heaviest(cost for m in self.modalities() if (cost := self.heaviest(m)))
