"""A dataset of the Hugging Face hub, or of a layout that `datasets` knows, streamed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mmcalib.corpus.rows import TEXT_COLUMNS, Row, Table
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import CorpusError
from mmcalib.locations.hf_dataset import Query, open_dataset
from mmcalib.locations.location import BEHIND, Location
from mmcalib.media.failure import reason
from mmcalib.wording import one_line

# What `datasets` calls a file of a dataset that lies there.
_HUB = "hf://"


class HfDatasetSource:
    """Every medium of `hf-dataset://NAME?name=CONFIG&split=SPLIT&data_dir=DIR`, row by row, as
    `ParquetSource` reads a table. Code of the dataset's own is never run.

    Raises UsageError for another URL, or when `datasets` is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._query = Query.of(url)

    def items(self) -> Iterator[Item | Skipped]:
        """Raise CorpusError when the dataset cannot be opened or is empty."""
        empty = True
        for found in self._rows():
            empty = False
            if isinstance(found, Skipped):
                yield found
                continue
            number, row, table, texts = found
            yield from table.items(number, row, texts)
        if empty:
            raise CorpusError(
                f"no rows in {one_line(self.url)}", hint="hf-dataset://NAME?split=SPLIT"
            )

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Raise CorpusError when the dataset cannot be opened."""
        for found in self._rows():
            if not isinstance(found, Skipped):
                number, row, table, texts = found
                if not texts:
                    return
                yield table.prompt(number, row, texts)

    def _rows(self) -> Iterator[tuple[int, Row, Table, list[str]] | Skipped]:
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
                    texts = [name for name in row if _is_text(name, row[name])]
                yield number, row, table, texts
        except (OSError, ValueError) as error:
            yield Skipped(self.url, reason(error))

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


def _is_text(column: str, value: object) -> bool:
    return column.lower() in TEXT_COLUMNS and isinstance(value, str)
