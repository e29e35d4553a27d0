"""A parquet table whose cells hold media."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any

from mmcalib.corpus.rows import TEXT_COLUMNS, Row, Table
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.locations.location import Location
from mmcalib.locations.parquet import batch_rows, open_table
from mmcalib.media.failure import reason


class ParquetSource:
    """Every medium of the table at `path` or a URL, row by row; and each row as a prompt where a
    column of strings has a name of `TEXT_COLUMNS`.

    A cell without bytes names a file in the table's folder. What cannot be read is `Skipped`.
    Raises UsageError when pyarrow is not installed.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def items(self) -> Iterator[Item | Skipped]:
        """In a table of prompts, whose media came with them, each is named without its bytes."""
        for found in self._rows():
            if isinstance(found, Skipped):
                yield found
                continue
            number, row, table, texts = found
            yield from table.items(number, row, texts)
            # The next one is unpacked while nothing of this one is held.
            del found, row

    def prompts(self) -> Iterator[Prompt | Skipped]:
        for found in self._rows(prompts_only=True):
            if not isinstance(found, Skipped):
                number, row, table, texts = found
                yield table.prompt(number, row, texts)
                del found, row

    def _rows(
        self, *, prompts_only: bool = False
    ) -> Iterator[tuple[int, Row, Table, list[str]] | Skipped]:
        try:
            with open_table(self.path) as (version, opened):
                media, texts = _columns(opened.schema_arrow)
                if prompts_only and not texts:
                    return
                if not media:
                    yield Skipped(self.path, "a table without a column of media")
                    return
                table = Table("parquet", self.path, version, self._named)
                number = 0
                rows = batch_rows(opened.metadata)
                for batch in opened.iter_batches(rows, columns=media + texts):
                    waiting = deque(_rows_of(batch))
                    del batch
                    while waiting:
                        if waiting[0] is None:
                            yield Skipped(f"{self.path}:{number}", "its text is not UTF-8")
                        else:
                            yield number, waiting[0], table, texts
                        waiting.popleft()
                        number += 1
        except (OSError, ValueError) as error:
            yield Skipped(self.path, reason(error))

    def _named(self, path: str) -> Item | Skipped:
        """A file below the folder of the table; a table of others must not lead elsewhere."""
        if "\0" in path or not all(Location.of(one).is_file for one in (path, self.path)):
            return Skipped(path, f"named by {self.path}: not a file on this disk")
        folder = os.path.dirname(os.path.realpath(self.path))
        found = os.path.realpath(os.path.join(folder, path))
        if os.path.commonpath((folder, found)) != folder:
            return Skipped(found, f"named by {self.path}: outside its folder")
        return Item(found) if os.path.exists(found) else Skipped(found, "no such file")


def _rows_of(batch: Any) -> list[Row | None]:
    """None for a row with a text that is none."""
    try:
        rows: list[Row | None] = batch.to_pylist()
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [None]
        return [row for number in range(batch.num_rows) for row in _rows_of(batch.slice(number, 1))]
    return rows


def _columns(schema: Any) -> tuple[list[str], list[str]]:
    """The columns that may hold media, bytes or paths, and those that hold words."""
    kinds = {one.name: str(getattr(one.type, "storage_type", one.type)) for one in schema}
    media = [name for name, kind in kinds.items() if "binary" in kind or "path: " in kind]
    words = [name for name, kind in kinds.items() if kind in ("string", "large_string")]
    return media, [name for name in words if name.lower() in TEXT_COLUMNS]
