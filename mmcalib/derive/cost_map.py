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
        self.columns = dict(columns)

    def __getitem__(self, shape: Shape) -> ItemCost:
        columns = self.columns.get(shape.modality)
        row = None if columns is None else columns.shapes.place(shape)
        if columns is None or row is None:
            raise KeyError(shape)
        return columns[row]

    def tokens(self, shape: Shape) -> int | None:
        """Of one item; None where it has no cost."""
        columns = self.columns.get(shape.modality)
        row = None if columns is None else columns.shapes.place(shape)
        return None if columns is None or row is None else int(columns.tokens[row])

    def __contains__(self, shape: object) -> bool:
        return any(shape in columns.shapes for columns in self.columns.values())

    def __iter__(self) -> Iterator[Shape]:
        for columns in self.columns.values():
            yield from columns.shapes

    def __len__(self) -> int:
        return sum(map(len, self.columns.values()))
