"""Parquet and HF dataset rows."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any

from mmcalib.corpus.chat import Prompt
from mmcalib.corpus.rows import TEXT_COLUMNS, Row, Table
from mmcalib.domain.items import Item, Skipped
from mmcalib.errors import CorpusError
from mmcalib.media.failure import reason
from mmcalib.storage.location import BEHIND, Location
from mmcalib.storage.tables import Query, batch_rows, open_dataset, open_table
from mmcalib.text import one_line

# The number of a row, the row, how it is read, and its columns of words.
_FoundRow = tuple[int, Row, Table, list[str]]


class _TableSource:
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

    def _rows(self, *, prompts_only: bool = False) -> Iterator[_FoundRow | Skipped]:
        """All rows; none with `prompts_only` where the table has no words."""
        raise NotImplementedError


class ParquetSource(_TableSource):
    """Every medium of the table at `path` or a URL, row by row; and each row as a prompt where a
    column of strings has a name of `TEXT_COLUMNS`.

    A cell without bytes names a file in the table's folder. What cannot be read is `Skipped`.
    Raises UsageError when pyarrow is not installed.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def _rows(self, *, prompts_only: bool = False) -> Iterator[_FoundRow | Skipped]:
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


# What `datasets` calls a file of a dataset that lies there.
_HUB = "hf://"


class HfDatasetSource(_TableSource):
    """Every medium of `hf-dataset://NAME?name=CONFIG&split=SPLIT&data_dir=DIR`, row by row, as
    `ParquetSource` reads a table. Code of the dataset's own is never run.

    Raises UsageError for another URL, or when `datasets` is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._query = Query.of(url)

    def _rows(self, *, prompts_only: bool = False) -> Iterator[_FoundRow | Skipped]:
        """Raise CorpusError when the dataset cannot be opened or has no row."""
        table, texts = Table("hf-dataset", self.url, "", self._named), None
        try:
            rows = open_dataset(self._query)
        except (OSError, ValueError) as error:
            raise CorpusError(
                f"cannot open {one_line(self.url)}: {one_line(str(error))}",
                hint="hf-dataset://NAME?name=CONFIG&split=SPLIT&data_dir=DIR",
            ) from error
        try:
            for number, row in enumerate(rows):
                if texts is None:
                    words = (name for name in row if isinstance(row[name], str))
                    texts = [name for name in words if name.lower() in TEXT_COLUMNS]
                    if prompts_only and not texts:
                        return
                yield number, row, table, texts
        except (OSError, ValueError) as error:
            yield Skipped(self.url, reason(error))
            return
        if texts is None and not prompts_only:
            raise CorpusError(
                f"no rows in {one_line(self.url)}", hint="hf-dataset://NAME?split=SPLIT"
            )

    def _named(self, path: str) -> Item | Skipped:
        """What `datasets` found itself, but only where the dataset lies: its rows may say anything
        else, such as a file of this machine.
        """
        if "\0" in path:
            return Skipped(path, f"named by {self.url}: not a path")
        if not Location.of(path).is_file:
            known = path.rpartition(BEHIND)[2].startswith((_HUB, *self._query.hosts))
            return Item(path) if known else Skipped(path, f"named by {self.url}: elsewhere")
        found = os.path.realpath(path)
        if not any(found == root or found.startswith(root + "/") for root in self._query.folders):
            return Skipped(path, f"named by {self.url}: outside its folder")
        return (
            Item(os.path.abspath(path)) if os.path.exists(found) else Skipped(path, "no such file")
        )
