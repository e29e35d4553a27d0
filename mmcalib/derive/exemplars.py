"""A path for each row of columns, most of them where the census has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, overload

from mmcalib.domain.shape_columns import Column
from mmcalib.domain.shape_counts import ShapeCounts

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
