"""One cell of a parquet table."""

from __future__ import annotations

import atexit
import bisect
import io
import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from mmcalib.domain.items import Item
from mmcalib.locations.location import Location
from mmcalib.locations.opening import Opened, open_whole
from mmcalib.locations.optional_deps import need, plain_errors
from mmcalib.locations.table_cell import Cell, Cursor
from mmcalib.sizes import MIB

# Pages are read as they are needed, not a row group at once.
_BUFFER_BYTES = MIB

# Rows in memory at once, and what they may take.
_BATCH_ROWS = 16
_BATCH_BYTES = 1 << 26


@contextmanager
def open_table(path: str) -> Iterator[tuple[str, Any]]:
    """The version and the ParquetFile of the table at a path or URL, closed at the end.

    Raises OSError or ValueError, also from within, and UsageError without pyarrow.
    """
    parquet = need("pyarrow.parquet", "parquet")
    with plain_errors("parquet"):
        version, file, _ = open_whole(path)
        try:
            with (
                file,
                parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as table,
            ):
                yield version, table
        finally:
            # Arrow keeps what it had for the next table.
            need("pyarrow", "parquet").default_memory_pool().release_unused()


def batch_rows(metadata: Any) -> int:
    """How many rows fit into a batch, where each may have the largest value of its row group, which
    is written once.
    """
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    largest_bytes = max((group.total_byte_size for group in groups), default=0)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, largest_bytes)))


def open_item(item: Item, location: Location) -> Opened:
    """Raises OSError or ValueError, UsageError without pyarrow."""
    cell = Cell.of(location.member)
    version = item.held.version if item.held else ""
    data = cell.bytes_of(_cursor(location.archive or "", version, cell.column).row(cell.row))
    return Opened(io.BytesIO(data), len(data))


# The columns of one table in turns.
@lru_cache(maxsize=8)
def _cursor(path: str, version: str, column: str) -> Cursor:
    """Another version is another table."""
    return Cursor(lambda row: _values(path, column, row))


def _values(path: str, column: str, row: int) -> Iterator[object]:
    """A column from `row` on; of the row groups before it nothing is read."""
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
            wanted = batch.column(0)[skipped:]
            skipped -= min(skipped, len(batch))
            waiting = deque(wanted.to_pylist())
            # The next one is unpacked while nothing of this one is held.
            del batch, wanted
            while waiting:
                yield waiting.popleft()


# A table that is still open complains when the interpreter ends.
atexit.register(_cursor.cache_clear)
