"""Costs of items: one row, columns of rows, and tables for a setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import linear_regression
from typing import Any, Literal, get_args

import numpy as np

from mmcalib.domain.knobs import Setting, covering_count
from mmcalib.domain.model import Quantile, RejectedBy
from mmcalib.domain.shape_columns import BATCH_ROWS, Column, ShapeCounts, Shapes
from mmcalib.domain.shapes import MODALITIES, Modality, Shape, weight

# real: vLLM processed the file itself; blank: it processed a blank item of equal shape; unchanged:
# below the cap that tells this setting from the default, so the default's cost; counted: computed
# by vLLM's own count of the item's size, which matched every processed item.
Basis = Literal["real", "blank", "unchanged", "counted"]
BASES: tuple[Basis, ...] = get_args(Basis)


@dataclass(frozen=True, slots=True)
class ItemCost:
    """Cost of one item of `shape`; `count` items of the corpus have it. `tokens` in the prompt,
    `embeds` in the encoder cache, `tensor_bytes` of processed tensors, `process_s` seconds to load
    and process. `sampled` is what vLLM's loader returned, as in `mmcalib.domain.model.Cost`;
    `cpu_s` are processor seconds of a real item; 0 for blank items.
    """

    shape: Shape
    count: int
    exemplar: str
    tokens: int
    embeds: int
    tensor_bytes: int
    process_s: float
    sampled: tuple[int, ...]
    basis: Basis
    cpu_s: float = 0.0


def find_heaviest(costs: Iterable[ItemCost]) -> ItemCost | None:
    """The item with the most embeds; ties by path, for a stable result."""
    return max(costs, key=lambda cost: (cost.embeds, cost.tokens, cost.exemplar), default=None)


# Numbers that a loader returns for an item, and their type: width and height, after the frames of
# a video; samples, which may be many, and rate of audio.
_SAMPLED: Mapping[Modality, tuple[int, str]] = {
    "image": (2, "i4"),
    "video": (3, "i4"),
    "audio": (2, "i8"),
}
# Marks a missing number.
MISSING = -1


def sampled_rows(modality: Modality, tuples: Iterable[Sequence[int]]) -> Column:
    """Build a row for each, as wide as the modality needs; missing numbers are -1."""
    width, kind = _SAMPLED[modality]
    padded = [(*numbers, *(MISSING,) * width)[:width] for numbers in tuples]
    return np.array(padded, dtype=kind).reshape(-1, width)


def sampled_tuple(numbers: list[int]) -> tuple[int, ...]:
    """Reverse `sampled_rows` for one row."""
    return tuple(numbers[: numbers.index(MISSING)] if MISSING in numbers else numbers)


class ColumnField:
    """Descriptor of the column with the attribute's name, of several or of a structured array."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, holder: Any, owner: type) -> Column:
        column: Column = holder.columns[self.name]
        return column


@dataclass(frozen=True, eq=False)
class CostColumns:
    """A row for each shape, ascending, with the fields of `ItemCost`, built on access: counts and
    bytes take eight bytes, tokens and embeds four. `entries` are positions in the `census`; rows in
    `own` have their own exemplar and processor seconds. Settings share equal columns.
    """

    shapes: Shapes
    columns: Mapping[str, Column]
    census: ShapeCounts | None
    own: Mapping[int, tuple[str, float]] = field(default_factory=dict)

    counts = ColumnField()
    tokens = ColumnField()
    embeds = ColumnField()
    tensor_bytes = ColumnField()
    process_s = ColumnField()
    sampled = ColumnField()
    bases = ColumnField()
    entries = ColumnField()

    @classmethod
    def from_costs(cls, modality: Modality, costs: Iterable[ItemCost]) -> CostColumns:
        """Sort costs into rows; each shape once."""
        ordered = sorted(costs, key=lambda cost: cost.shape)
        own = {entry: (cost.exemplar, cost.cpu_s) for entry, cost in enumerate(ordered)}
        shapes = Shapes.from_shapes(modality, [cost.shape for cost in ordered])
        columns = {**_columns(modality, ordered), "entries": np.arange(len(own))}
        return cls(shapes, columns, None, own)

    @classmethod
    def unmeasured(cls, entries: ShapeCounts) -> CostColumns:
        """Rows for all these shapes, not measured yet."""
        size, none = len(entries), _columns(entries.shapes.modality, ())
        columns = {name: np.zeros((size, *c.shape[1:]), c.dtype) for name, c in none.items()}
        columns |= {"counts": entries.counts, "entries": np.arange(size, dtype=np.int32)}
        columns["sampled"][:], columns["bases"][:] = MISSING, BASES.index("blank")
        return cls(entries.shapes, columns, entries)

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, at: int) -> ItemCost:
        row = range(len(self))[at]
        return next(self._make_rows(slice(row, row + 1)))

    def __iter__(self) -> Iterator[ItemCost]:
        for start in range(0, len(self), BATCH_ROWS):
            yield from self._make_rows(slice(start, start + BATCH_ROWS))

    def _make_rows(self, part: slice) -> Iterator[ItemCost]:
        lists = [column[part].tolist() for column in self.columns.values()]
        for shape, row in zip(self.shapes[part], zip(*lists, strict=True), strict=True):
            count, tokens, embeds, nbytes, seconds, sampled, basis, entry = row
            exemplar, cpu_s = self.own.get(entry) or ("", 0.0)
            if not exemplar and self.census is not None:
                exemplar = self.census.exemplar_paths(entry)[0]
            numbers = tokens, embeds, nbytes, seconds, sampled_tuple(sampled)
            yield ItemCost(shape, count, exemplar, *numbers, BASES[basis], cpu_s)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostColumns) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def modality(self) -> Modality:
        return self.shapes.modality

    def item_count(self) -> int:
        """Number of items of all shapes."""
        return int(self.counts.sum())

    @cached_property
    def heaviest(self) -> ItemCost | None:
        """The item with the most embeds; ties by path, for a stable result."""
        rows = np.arange(len(self))
        for column in (self.embeds, self.tokens):
            of = column[rows]
            rows = rows[of == of.max(initial=0)]
        return find_heaviest(self.take(rows))

    def basis_mask(self, basis: Basis) -> Column:
        """Mask of the rows with this basis."""
        mask: Column = self.bases == BASES.index(basis)
        return mask

    def take(self, rows: Column) -> CostColumns:
        """Select rows by ascending positions or by a mask."""
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        if len(rows) == len(self):
            return self
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, shapes=self.shapes.take(rows), columns=columns)

    def mark_unchanged(self) -> CostColumns:
        """Relabel these costs for a setting that changes none of them."""
        return self._set_values(~self.basis_mask("counted"), bases=BASES.index("unchanged"))

    def with_counts(self, rows: Column, **columns: Column) -> CostColumns:
        """Replace these rows by counted values; `columns` have values for `rows` only."""
        return self._set_values(rows, **columns, bases=BASES.index("counted"))

    def _set_values(self, rows: Column, **values: Any) -> CostColumns:
        """Set fields of these rows; columns without a change are shared."""
        columns = dict(self.columns)
        for name, new in values.items():
            if not np.array_equal(columns[name][rows], new):
                columns[name] = columns[name].copy()
                columns[name][rows] = new
        return replace(self, columns=columns)

    def replace_costs(self, others: Mapping[Shape, ItemCost | None]) -> CostColumns:
        """Replace the costs of these shapes of its modality, or remove those that are None."""
        others = {s: cost for s, cost in others.items() if s.modality == self.modality}
        if not others:
            return self
        places = ((self.shapes.position(shape), cost) for shape, cost in others.items())
        known = {row: cost for row, cost in places if row is not None}
        new = [c for shape, c in others.items() if c is not None and shape not in self.shapes]
        changed = {row: cost for row, cost in known.items() if cost is not None}
        result = self
        if changed:
            at, costs = np.array(list(changed)), list(changed.values())
            of = zip(self.entries[at].tolist(), costs, strict=True)
            own = {**self.own, **{entry: (cost.exemplar, cost.cpu_s) for entry, cost in of}}
            result = replace(self._set_values(at, **_columns(self.modality, costs)), own=own)
        if gone := known.keys() - changed.keys():
            result = result.take(np.delete(np.arange(len(self)), list(gone)))
        # New only if vLLM rejected the blank item, but not the real one.
        return CostColumns.from_costs(self.modality, [*result, *new]) if new else result


def _columns(modality: Modality, costs: Sequence[ItemCost]) -> dict[str, Column]:
    """Columns of these costs, in order, without `entries`."""
    return {
        "counts": np.array([cost.count for cost in costs], dtype=np.int64),
        "tokens": np.array([cost.tokens for cost in costs], dtype=np.int32),
        "embeds": np.array([cost.embeds for cost in costs], dtype=np.int32),
        "tensor_bytes": np.array([cost.tensor_bytes for cost in costs], dtype=np.int64),
        "process_s": np.array([cost.process_s for cost in costs], dtype=float),
        "sampled": sampled_rows(modality, (cost.sampled for cost in costs)),
        "bases": np.array([BASES.index(cost.basis) for cost in costs], dtype=np.int8),
    }


class CostMap(Mapping[Shape, ItemCost]):
    """Costs of several modalities, by shape."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[Modality, CostColumns]) -> None:
        self.columns = columns

    def __getitem__(self, shape: Shape) -> ItemCost:
        row = self._place(shape)
        if row is None:
            raise KeyError(shape)
        return self.columns[shape.modality][row]

    def tokens(self, shape: Shape) -> int | None:
        """Tokens of one item; None without a cost."""
        row = self._place(shape)
        return None if row is None else int(self.columns[shape.modality].tokens[row])

    def __contains__(self, shape: object) -> bool:
        return isinstance(shape, Shape) and self._place(shape) is not None

    def _place(self, shape: Shape) -> int | None:
        columns = self.columns.get(shape.modality)
        return None if columns is None else columns.shapes.position(shape)

    def __iter__(self) -> Iterator[Shape]:
        for columns in self.columns.values():
            yield from columns.shapes

    def __len__(self) -> int:
        return sum(map(len, self.columns.values()))


@dataclass(frozen=True, slots=True)
class Refusal:
    """vLLM or this machine rejects every item of this shape, for this reason."""

    shape: Shape
    count: int
    exemplar: str
    reason: str
    by: RejectedBy = "vllm"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A blank item and the real item of equal shape differ; the real one wins."""

    exemplar: str
    shape: Shape
    real_tokens: int
    blank_tokens: int
    why: str


@dataclass(frozen=True, slots=True)
class ResampledClip:
    """Samples of a real clip at the model's rate, by vLLM's loader and by librosa."""

    exemplar: str
    vllm_samples: int
    librosa_samples: int


@dataclass(frozen=True, slots=True)
class CostTable:
    """All costs under one setting. `compared` real items were compared with blank ones; vLLM could
    not load `failed` ones, and `out_of_reach` ones could not be fetched. `witnesses` blank items of
    a modality were processed; its other shapes were counted.
    """

    setting: Setting
    columns: Mapping[Modality, CostColumns]
    refusals: tuple[Refusal, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    compared: int = 0
    failed: dict[Modality, int] = field(default_factory=dict)
    witnesses: dict[Modality, int] = field(default_factory=dict)
    out_of_reach: int = 0
    resampled: tuple[ResampledClip, ...] = ()

    @property
    def costs(self) -> CostMap:
        """Costs by shape."""
        return CostMap(self.columns)

    def columns_of(self, modality: Modality) -> CostColumns:
        """The costs of one modality, ascending by shape."""
        return self.columns.get(modality) or CostColumns.from_costs(modality, ())

    def modalities(self) -> tuple[Modality, ...]:
        return tuple(m for m in MODALITIES if self.columns_of(m))

    def max_embeds(self) -> dict[Modality, int]:
        """Embeds of the largest item of each modality."""
        return {m: int(self.columns_of(m).embeds.max()) for m in self.modalities()}

    @property
    def largest_embeds(self) -> int:
        """Embeds of the largest item."""
        return max(self.max_embeds().values(), default=0)

    def heaviest(self, modality: Modality) -> ItemCost | None:
        """The item with the most embeds; ties by path, for a stable result."""
        return self.columns_of(modality).heaviest

    def largest(self) -> ItemCost | None:
        """The heaviest item of all modalities."""
        return find_heaviest(cost for m in self.modalities() if (cost := self.heaviest(m)))


def token_quantiles(costs: CostColumns) -> dict[Quantile, int]:
    """Quantiles of tokens per item, over at least one item."""
    tokens, counts = costs.tokens, costs.counts
    return {
        "min": int(tokens.min()),
        "p50": quantile(tokens, counts, 0.50),
        "p90": quantile(tokens, counts, 0.90),
        "p99": quantile(tokens, counts, 0.99),
        "max": int(tokens.max()),
    }


def quantile(tokens: Sequence[int] | Column, counts: Sequence[int] | Column, share: float) -> int:
    """The smallest token count that covers a `share` of the items; 0 without items."""
    if not len(tokens):
        return 0
    order = np.argsort(tokens, kind="stable")
    covered = np.cumsum(np.asarray(counts)[order])
    needed = covering_count(share, int(covered[-1]))
    return int(np.asarray(tokens)[order][covered.searchsorted(needed)])


def mean_cpu_s(table: CostTable) -> tuple[float, int] | None:
    """Mean seconds over items of modalities with a measured file, and the number of files."""
    total_s, items, measured = 0.0, 0, 0
    for modality in table.modalities():
        costs = table.columns_of(modality)
        rows = [
            row for row in np.flatnonzero(costs.basis_mask("real")).tolist() if costs[row].cpu_s
        ]
        if rows:
            # Others follow a line through the measured ones, over what is decoded (`weight`).
            real = [costs[row] for row in rows]
            line = cpu_line([(weight(cost.shape), cost.cpu_s) for cost in real])
            each = np.fromiter(map(line, costs.shapes.weights().tolist()), float, len(costs))
            each[rows] = [cost.cpu_s for cost in real]
            total_s += float((costs.counts * each).sum())
            items += costs.item_count()
            measured += len(rows)
    return (total_s / items, measured) if items else None


def cpu_line(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """Fit seconds over weight, start and slope >= 0; proportional if weights are equal."""
    weights, seconds = zip(*points, strict=True)
    mean = sum(seconds) / len(seconds)
    slope, start = linear_regression(weights, seconds) if len(set(weights)) > 1 else (0.0, mean)
    if slope < 0:
        slope, start = 0.0, mean
    elif any(weights) and (start < 0 or len(set(weights)) == 1):
        slope, start = sum(w * s for w, s in points) / sum(w * w for w in weights), 0.0
    return lambda of: start + slope * of
