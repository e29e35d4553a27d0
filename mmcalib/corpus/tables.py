"""Rows of a table as items and prompts; Parquet tables and Hugging Face data sets as sources."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmcalib.corpus.chat import PART_OF, ChatRequest, Prompt, text_part, url_part
from mmcalib.domain.items import ByteSource, Item, Skipped, drop_data
from mmcalib.domain.shapes import Modality, is_size, parse_size, with_tag
from mmcalib.errors import CorpusError
from mmcalib.files import is_within
from mmcalib.media.failure import error_reason
from mmcalib.media.sniff import EXTENSIONS, HEAD_BYTES, extension_of, is_media, sniff
from mmcalib.storage.location import MEMBER_MARK, Location, member_path, url_of
from mmcalib.storage.tables import Cell, Query, batch_rows, open_dataset, open_table
from mmcalib.text import MISSING, NO_FILE, one_line

# A table with a column of one of these names, of strings or of turns, is a table of prompts.
TEXT_COLUMNS = (
    *("prompt", "question", "text", "caption", "query", "instruction"),
    *("messages", "conversations", "conversation", "texts"),
)
# Strings in columns of these names are paths, in a table without other media.
PATH_COLUMNS = tuple(
    f"{name}{ending}"
    for name in ("file", "image", "video", "audio")
    for ending in ("", "s", "_path", "_name", "_filepath")
)

# Items do not carry the bytes of larger media: they are read again when needed.
MOST_SENT_BYTES = 1 << 24

_EMPTY: tuple[object, ...] = (None, {"bytes": None, "path": None})

Row = Mapping[str, object]

# One medium of a row: the item to count, and the modality of its content part.
_Medium = tuple[Item | Skipped, Modality]

# A row's number, the row, and the names of its text columns; None if rows are no requests.
_TableRow = tuple[int, Row, Sequence[str] | None]


class _TableSource:
    """The rows of the table at `path` as items and prompts; `scheme` opens its cells.

    Media are cells of `{bytes, path}` as `datasets` writes them, paths in `PATH_COLUMNS`, lists of
    both, and plain binary columns whose first value starts like a media file. Each row is a request
    if the table has a text column or lists of media.
    """

    scheme: str
    version = ""
    # Those that may contain media, if known.
    columns: Sequence[str] = ()

    def __init__(self, path: str) -> None:
        self.path = path
        # Plain binary columns seen so far -> whether they contain media.
        self._binary: dict[str, bool] = {}

    def items(self) -> Iterator[Item | Skipped]:
        """Yield all media; in a table of prompts without bytes, which came with the prompts."""
        for entry in self._rows():
            if isinstance(entry, Skipped):
                yield entry
                continue
            yield from self._items(*entry)
            # Free this row before the next one is unpacked.
            del entry

    def prompts(self) -> Iterator[Prompt | Skipped]:
        for entry in self._rows(prompts_only=True):
            if not isinstance(entry, Skipped):
                number, row, texts = entry
                prompt = self._prompt(number, row, texts or ())
                # An empty list and no text is no request.
                if texts or isinstance(prompt, Skipped) or prompt.items:
                    yield prompt
                del entry, row

    def _rows(self, *, prompts_only: bool = False) -> Iterator[_TableRow | Skipped]:
        """Yield all rows; with `prompts_only`, none if they are no requests."""
        raise NotImplementedError

    def _resolve_path(self, path: str) -> Item | Skipped:
        """Find the file that a cell without bytes names."""
        raise NotImplementedError

    def _prompt(self, number: int, row: Row, texts: Sequence[str]) -> Prompt | Skipped:
        """Build a request: media in column order, without bytes to save memory, then the text."""
        origin = f"{self.path}:{number}"
        items, parts = [], []
        for item, modality in self._media(number, row):
            if isinstance(item, Skipped):
                return Skipped(origin, one_line(f"{item.path}: {item.reason}"))
            items.append(drop_data(item))
            parts.append(url_part(PART_OF[modality], url_of(item.path)))
        parts += [text_part(text) for column in texts for text in _texts(row[column])]
        return Prompt(origin, tuple(items), ChatRequest.of_user(parts))

    def _items(
        self, number: int, row: Row, texts: Sequence[str] | None
    ) -> Iterator[Item | Skipped]:
        """Yield the media of a row, without bytes if `prompts` uses them too."""
        item, is_request = None, texts is not None
        for item, _ in self._media(number, row):
            yield drop_data(item) if is_request and isinstance(item, Item) else item
        known = [] if item else [row[name] for name in self.columns]
        # Plain bytes may be something else.
        if any(isinstance(one, dict | list) and one not in (*_EMPTY, []) for one in known):
            why = "no cell of its row has bytes or a path of media"
            yield Skipped(f"{self.path}:{number}", why)
        elif known and not is_request:
            yield Skipped(f"{self.path}:{number}", MISSING)

    def _media(self, number: int, row: Row) -> Iterator[_Medium]:
        """Yield the media of a row, skipping empty cells."""
        for column, value in row.items():
            cells = enumerate(value) if isinstance(value, list | tuple) else [(None, value)]
            for place, one in cells:
                yield from self._medium(Cell(number, column, place), one)

    def _medium(self, cell: Cell, value: object) -> Iterator[_Medium]:
        location = member_path(self.scheme, cell.member, self.path)
        match value:
            case {"bytes": bytes() as data, **rest}:
                yield self._cell_medium(location, data, str(rest.get("path") or ""))
            case str() if cell.column in self.columns:
                yield from self._medium(cell, {"path": value})
            case {"path": str() as path} if is_size(path):
                item = Item(with_tag(path, f"{self.path}:{cell.member}"))
                try:
                    yield item, parse_size(path).modality
                except ValueError as error:
                    yield Skipped(item.path, str(error)), "image"
            case {"path": str() as path}:
                yield self._resolve_path(path), guess_modality(b"", extension_of(path))
            case bytes() if self._binary.setdefault(cell.column, is_media(value)):
                yield self._cell_medium(location, value, "")

    def _cell_medium(self, location: str, data: bytes, path: str) -> _Medium:
        sent = data if len(data) <= MOST_SENT_BYTES else None
        source = ByteSource(self.version, len(data), data=sent)
        return Item(location, byte_source=source), guess_modality(data, extension_of(path))


def _texts(value: object, name: str = "") -> Iterator[str]:
    """Yield the texts of a cell, or of the turns in it."""
    match value:
        case str() if name not in ("role", "from", "type"):
            yield value
        case dict():
            for key, one in value.items():
                yield from _texts(one, key)
        case list():
            for one in value:
                yield from _texts(one, name)


def guess_modality(data: bytes, ending: str) -> Modality:
    """Guess the modality from first bytes and extension; the probe decides later."""
    kind = sniff(data[:HEAD_BYTES])
    if kind == "audio" or (kind != "image" and ending in EXTENSIONS["audio"]):
        return "audio"
    video = kind == "container" or (kind != "image" and ending in EXTENSIONS["video"])
    return "video" if video else "image"


class ParquetSource(_TableSource):
    """The media of the table at `path`, a file or URL, row by row.

    A cell without bytes names a file in the table's folder. Unreadable rows are `Skipped`. Raises
    UsageError without pyarrow.
    """

    scheme = "parquet"

    def _rows(self, *, prompts_only: bool = False) -> Iterator[_TableRow | Skipped]:
        try:
            with open_table(self.path) as (self.version, opened):
                self.columns, texts = _columns(opened.schema_arrow)
                if prompts_only and texts is None:
                    return
                if not self.columns:
                    names = one_line(", ".join(opened.schema_arrow.names))
                    yield Skipped(self.path, f"the table has no media column, only {names}")
                    return
                number = 0
                rows = batch_rows(opened.metadata)
                for batch in opened.iter_batches(rows, columns=[*self.columns, *(texts or ())]):
                    waiting = deque(_rows_of(batch))
                    del batch
                    while waiting:
                        if waiting[0] is None:
                            yield Skipped(f"{self.path}:{number}", "text is not UTF-8")
                        else:
                            yield number, waiting[0], texts
                        waiting.popleft()
                        number += 1
        except (OSError, ValueError) as error:
            yield Skipped(self.path, error_reason(error))

    def _resolve_path(self, path: str) -> Item | Skipped:
        """Return a file below the table's folder; an untrusted table must not name others."""
        if "\0" in path or not all(Location.of(one).is_file for one in (path, self.path)):
            return Skipped(path, f"not a local file: named in {self.path}")
        folder = os.path.dirname(os.path.realpath(self.path))
        file = os.path.realpath(os.path.join(folder, path))
        if not is_within(file, folder):
            return Skipped(file, f"outside the table's folder: named in {self.path}")
        return Item(file) if os.path.exists(file) else Skipped(file, NO_FILE)


def _rows_of(batch: Any) -> list[Row | None]:
    """Return the rows of a batch; None for rows with text that is not UTF-8."""
    try:
        rows: list[Row | None] = batch.to_pylist()
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [None]
        return [row for number in range(batch.num_rows) for row in _rows_of(batch.slice(number, 1))]
    return rows


def _columns(schema: Any) -> tuple[list[str], list[str] | None]:
    """Return the columns that may contain media (bytes or paths), and the text columns."""
    kinds = {one.name: str(getattr(one.type, "storage_type", one.type)) for one in schema}
    words = [name for name, kind in kinds.items() if "string" in kind]
    media = [name for name, kind in kinds.items() if "binary" in kind or "path: " in kind]
    # Beside the media themselves they only say where these come from.
    media = media or [name for name in words if name.lower() in PATH_COLUMNS]
    texts = [name for name in words if name.lower() in TEXT_COLUMNS and name not in media]
    has_lists = any(kinds[name].partition("<")[0].endswith("list") for name in media)
    return media, texts if texts or has_lists else None


class HfDatasetSource(_TableSource):
    """The media of `hf-dataset://NAME?name=CONFIG&split=SPLIT&data_dir=DIR`, row by row.

    Reads rows as `ParquetSource` does, and never runs the data set's own code. Raises UsageError
    for other URLs, or if `datasets` is not installed.
    """

    scheme = "hf-dataset"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._query = Query.of(url)

    def _rows(self, *, prompts_only: bool = False) -> Iterator[_TableRow | Skipped]:
        """Raises CorpusError if the data set cannot be opened or has no rows."""
        texts, number = None, -1
        try:
            rows = open_dataset(self._query)
        except (OSError, ValueError) as error:
            raise CorpusError(
                f"cannot open {one_line(self.path)}: {one_line(str(error))}",
                hint="hf-dataset://NAME?name=CONFIG&split=SPLIT&data_dir=DIR",
            ) from error
        try:
            for number, row in enumerate(rows):
                if not number:
                    words = (name for name in row if name.lower() in TEXT_COLUMNS)
                    texts = [name for name in words if any(_texts(row[name]))]
                    lists = {name: one for name, one in row.items() if isinstance(one, list)}
                    texts = texts if texts or any(self._media(number, lists)) else None
                if prompts_only and texts is None:
                    return
                yield number, row, texts
        except (OSError, ValueError) as error:
            yield Skipped(self.path, error_reason(error))
            return
        if number < 0 and not prompts_only:
            raise CorpusError(
                f"{one_line(self.path)} has no rows", hint="hf-dataset://NAME?split=SPLIT"
            )

    def _resolve_path(self, path: str) -> Item | Skipped:
        """Return a file of the data set; untrusted rows may name other files of this machine."""
        if "\0" in path:
            return Skipped(path, f"not a path: named in {self.path}")
        if not Location.of(path).is_file:
            # `datasets` names the hub's files by this scheme.
            known = path.rpartition(MEMBER_MARK)[2].startswith(("hf://", *self._query.hosts))
            return Item(path) if known else Skipped(path, f"on another host: named in {self.path}")
        file = os.path.realpath(path)
        if not any(is_within(file, folder) for folder in self._query.folders):
            return Skipped(path, f"outside the data set's folder: named in {self.path}")
        return Item(os.path.abspath(path)) if os.path.exists(file) else Skipped(path, NO_FILE)
