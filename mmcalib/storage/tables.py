"""Read cells of parquet tables and Hugging Face data sets."""

from __future__ import annotations

import atexit
import bisect
import io
import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from mmcalib.domain.items import Item
from mmcalib.errors import UsageError
from mmcalib.storage.access import CELL_SCHEMES, open_whole
from mmcalib.storage.location import MEMBER_MARK, Location, Opened, member_name
from mmcalib.storage.remote import import_optional, translate_errors
from mmcalib.text import MIB, one_line


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell. Rows and places count from 0; `place` is None unless the cell is a list."""

    row: int
    column: str
    place: int | None = None

    @classmethod
    def of(cls, member: str | None) -> Cell:
        """Parse the member of a `Location`, the reverse of `member`. Raises ValueError."""
        row, column, *place = member_name(member or "").split("/")
        name = column.replace("%2F", "/").replace("%25", "%")
        return cls(int(row), name, int(place[0]) if place else None)

    @property
    def member(self) -> str:
        """`7/image` or `7/images/0`, with `/` and `%` in the column's name percent-encoded."""
        column = self.column.replace("%", "%25").replace("/", "%2F")
        return f"{self.row}/{column}" + ("" if self.place is None else f"/{self.place}")

    def bytes_of(self, value: object) -> bytes:
        """Return the medium's bytes from the column's value. Raises ValueError if it has none."""
        if self.place is not None and isinstance(value, list):
            value = value[self.place] if self.place < len(value) else None
        if isinstance(value, dict):
            value = value.get("bytes")
        if not isinstance(value, bytes):
            raise ValueError("the table changed after it was read")
        return value


def names_cell(path: str) -> bool:
    """True if an item's path is a cell of a table."""
    return Location.of(path).scheme in CELL_SCHEMES and MEMBER_MARK in path


def row_of(path: str) -> str:
    """Return the table and row of a cell, such as `images.parquet:409`; else the path itself."""
    place = Location.of(path)
    return f"{place.archive}:{Cell.of(place.member).row}" if names_cell(path) else path


@dataclass(slots=True)
class Cursor:
    """Rows of a table, read by `read_from` in one pass if they are requested in order."""

    read_from: Callable[[int], Iterator[object]]
    _rows: Iterator[object] | None = None
    _at: int = -1
    _row: object = field(default=None, repr=False)

    def row(self, number: int) -> object:
        """Return a row; None after the last one. Raises what `read_from` raises."""
        if number == self._at and self._rows is not None:
            return self._row
        rows, skip = self._rows, number - self._at - 1
        if rows is None or skip < 0:
            rows, skip = self.read_from(number), 0
        # Clear both: a failed iterator is unusable, and two rows must not be in memory at once.
        self._rows = self._row = None
        self._row = next(islice(rows, skip, None), None)
        self._rows, self._at = rows, number
        return self._row


# Reads single pages instead of whole row groups.
_BUFFER_BYTES = MIB

# Limits of the rows in memory at once.
_BATCH_ROWS = 16
_BATCH_BYTES = 1 << 26


@contextmanager
def open_table(path: str) -> Iterator[tuple[str, Any]]:
    """Open a parquet file, and yield its version and the file. Raises as `open_item` does."""
    parquet = import_optional("pyarrow.parquet", "parquet")
    with translate_errors("parquet"):
        version, opened = open_whole(path)
        try:
            with (
                opened.file as file,
                parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as table,
            ):
                yield version, table
        finally:
            # Arrow would keep the memory for the next table.
            import_optional("pyarrow", "parquet").default_memory_pool().release_unused()


def batch_rows(metadata: Any) -> int:
    """Return how many rows fit into a batch if each has the largest value of its row group."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    largest_bytes = max((group.total_byte_size for group in groups), default=0)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, largest_bytes)))


# Enough for the columns of one table, read in turns.
@lru_cache(maxsize=8)
def _cell_cursor(path: str, version: str, column: str) -> Cursor:
    """Return the cursor of a column; `version` keeps a changed table apart."""
    return Cursor(lambda row: _values(path, column, row))


def _values(path: str, column: str, row: int) -> Iterator[object]:
    """Yield a column's values from `row` on, without reading earlier row groups."""
    with open_table(path) as (_, table):
        if column not in table.schema_arrow.names:
            return
        sizes = [table.metadata.row_group(n).num_rows for n in range(table.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        first = bisect.bisect_right(ends, row)
        skipped = row - (ends[first - 1] if first else 0)
        groups = list(range(first, len(sizes)))
        rows = batch_rows(table.metadata)
        for batch in table.iter_batches(rows, row_groups=groups, columns=[column]):
            values = batch.column(0)[skipped:]
            skipped -= min(skipped, len(batch))
            waiting = deque(values.to_pylist())
            # Free this batch before the next one is unpacked.
            del batch, values
            while waiting:
                yield waiting.popleft()


SCHEME = "hf-dataset"
_KEYS = ("name", "split", "data_dir", "data_files", "revision")
_DEFAULT_SPLIT = "train"


@dataclass(frozen=True, slots=True)
class Query:
    """The arguments of `datasets.load_dataset`."""

    path: str
    options: Mapping[str, str]

    @classmethod
    def of(cls, url: str) -> Query:
        """Parse a URL. Raises UsageError."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        path = (parts.netloc + parts.path).rstrip("/")
        unknown = sorted(set(options) - set(_KEYS))
        if parts.scheme != SCHEME or not path or unknown:
            why = f"unknown option: {', '.join(unknown)}" if unknown else "the data set has no name"
            raise UsageError(
                f"{one_line(url)}: {one_line(why)}",
                hint=f"{SCHEME}://NAME?" + "&".join(f"{key}=…" for key in _KEYS),
            )
        return cls(path, {"split": _DEFAULT_SPLIT, **options})

    @property
    def folders(self) -> tuple[str, ...]:
        """The local folders that the user named, links resolved."""
        names = (self.path, self.options.get("data_dir", ""), self.options.get("data_files", ""))
        local = [one for one in names if one and Location.of(one).is_file]
        # Drop wildcards and what follows them.
        plain = [re.split(r"[*?\[]", one)[0] for one in local]
        return tuple(
            os.path.realpath(one if os.path.isdir(one) else os.path.dirname(one))
            for one in plain
            if os.path.dirname(one) or os.path.isdir(one)
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the URLs that the user named, with their schemes."""
        names = (self.options.get("data_dir", ""), self.options.get("data_files", ""))
        urls = (urlsplit(one.rpartition(MEMBER_MARK)[2]) for one in names if "://" in one)
        return tuple(f"{one.scheme}://{one.netloc}/" for one in urls if one.netloc)


def is_saved(folder: str | Path) -> bool:
    """True if `save_to_disk` wrote the folder: a data set, or one for each split."""
    one = ("state.json", "dataset_info.json")
    names = [os.path.join(folder, name) for name in ("dataset_dict.json", *one)]
    return os.path.isfile(names[0]) or all(map(os.path.isfile, names[1:]))


def open_dataset(query: Query, start: int = 0) -> Iterator[Mapping[str, object]]:
    """Yield the data set's rows from `start` on, with media as bytes or paths.

    Raises OSError or ValueError, also while iterating, and UsageError without `datasets`.
    """
    datasets = import_optional("datasets", "hf")
    with translate_errors("hf"):
        datasets.disable_progress_bars()
        # Its log repeats the error for each attempt.
        import_optional("huggingface_hub.utils", "hf").logging.set_verbosity_error()
        if is_saved(query.path):
            saved, split = datasets.load_from_disk(query.path), query.options["split"]
            if isinstance(saved, dict) and split not in saved:
                raise ValueError(f"no split {split}, only {', '.join(saved)}")
            rows = (saved[split] if isinstance(saved, dict) else saved).to_iterable_dataset()
        else:
            rows = datasets.load_dataset(query.path, streaming=True, **query.options)
        rows = rows.decode(False)
        return _plain(iter(rows.skip(start) if start else rows))


def _plain(rows: Iterator[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
    with translate_errors("hf"):
        yield from rows


def open_item(item: Item, location: Location) -> Opened:
    """Open a cell; a data set is streamed up to its row. Raises OSError, ValueError, UsageError."""
    cell, table = Cell.of(location.member), location.archive or ""
    if location.scheme == SCHEME:
        row = _row_cursor(table).row(cell.row)
        value = row.get(cell.column) if isinstance(row, dict) else None
    else:
        version = item.byte_source.version if item.byte_source else ""
        value = _cell_cursor(table, version, cell.column).row(cell.row)
    data = cell.bytes_of(value)
    return Opened(io.BytesIO(data), len(data))


@lru_cache(maxsize=1)
def _row_cursor(url: str) -> Cursor:
    query = Query.of(url)
    return Cursor(lambda row: open_dataset(query, row))


# A table that is still open prints an error when the interpreter ends.
atexit.register(_cell_cursor.cache_clear)
atexit.register(_row_cursor.cache_clear)
