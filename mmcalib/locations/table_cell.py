"""Where in a table a medium stands: row, column, and the place in a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from mmcalib.locations.location import member_name


@dataclass(frozen=True, slots=True)
class Cell:
    """Rows and places are counted from 0; `place` is None where the cell is no list."""

    row: int
    column: str
    place: int | None = None

    @classmethod
    def of(cls, member: str | None) -> Cell:
        """The reverse of `member`, for the member of a `Location`. Raises ValueError."""
        row, column, *place = member_name(member or "").split("/")
        name = column.replace("%2F", "/").replace("%25", "%")
        return cls(int(row), name, int(place[0]) if place else None)

    @property
    def member(self) -> str:
        """`7/image`, or `7/images/0`; `/` and `%` in the column's name are percent-encoded."""
        column = self.column.replace("%", "%25").replace("/", "%2F")
        return f"{self.row}/{column}" + ("" if self.place is None else f"/{self.place}")

    def bytes_of(self, value: object) -> bytes:
        """The medium, of what its row has in `column`. Raises ValueError when it is none."""
        if self.place is not None and isinstance(value, list):
            value = value[self.place] if self.place < len(value) else None
        if isinstance(value, dict):
            value = value.get("bytes")
        if not isinstance(value, bytes):
            raise ValueError("the table has changed since it was read")
        return value


@dataclass(slots=True)
class Cursor:
    """Rows of a table, one pass over it where they are asked for in their order.

    `read_from` gives them from a row on.
    """

    read_from: Callable[[int], Iterator[object]]
    _rows: Iterator[object] | None = None
    _at: int = -1
    _row: object = field(default=None, repr=False)

    def row(self, number: int) -> object:
        """None behind the last row; what `read_from` raises."""
        if number == self._at and self._rows is not None:
            return self._row
        rows, ahead = self._rows, number - self._at - 1
        if rows is None or ahead < 0:
            rows, ahead = self.read_from(number), 0
        # Without a place until the row is read: what raises is not gone on with. Of two rows only
        # one is held.
        self._rows = self._row = None
        self._row = next(islice(rows, ahead, None), None)
        self._rows, self._at = rows, number
        return self._row
