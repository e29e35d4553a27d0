"""The costs of several modalities, by shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmcalib.derive.cost_columns import CostColumns
from mmcalib.derive.item_cost import ItemCost
from mmcalib.domain.shapes import Modality, Shape


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
