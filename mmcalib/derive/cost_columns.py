"""What all shapes of one modality cost, in columns: a million are as many rows and no objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from mmcalib.derive.exemplars import Exemplars, renumbered
from mmcalib.derive.item_cost import BASES, Basis, ItemCost, heaviest
from mmcalib.derive.sampled import integers, narrowed, sampled_rows, sampled_tuples, widened
from mmcalib.domain.shape_columns import Column, Shapes
from mmcalib.domain.shape_counts import ShapeCounts
from mmcalib.domain.shapes import Modality, Shape

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
