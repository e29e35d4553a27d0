"""Rows of a table: which columns are media, and which are a prompt's text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmcalib.corpus.chat import PART_OF, ChatRequest, Prompt, text_part, url_part
from mmcalib.domain.items import ByteSource, Item, Skipped, drop_data
from mmcalib.domain.shapes import Modality, is_size, parse_size, with_tag
from mmcalib.media.sniff import (
    AUDIO_EXTENSIONS,
    HEAD_BYTES,
    VIDEO_EXTENSIONS,
    extension_of,
    is_media,
    sniff,
)
from mmcalib.storage.location import member_path, url_of
from mmcalib.storage.tables import Cell
from mmcalib.text import MISSING, one_line

# A table with a string column of one of these names is a table of prompts.
TEXT_COLUMNS = frozenset(("prompt", "question", "text", "caption", "query", "instruction"))

# Items do not carry the bytes of larger media: they are read again when needed.
MOST_SENT_BYTES = 1 << 24

_EMPTY: tuple[object, ...] = (None, {"bytes": None, "path": None})

Row = Mapping[str, object]

# One medium of a row: the item to count, and the modality of its content part.
_Medium = tuple[Item | Skipped, Modality]


@dataclass(slots=True)
class Table:
    """Reads rows of the table at `path`; `scheme` opens its cells.

    Media are cells of `{bytes, path}` as `datasets` writes them, lists of such cells, and plain
    binary columns whose first value starts like a media file.
    """

    scheme: str
    path: str
    version: str
    # Finds the file that a cell without bytes names.
    resolve_path: Callable[[str], Item | Skipped]
    # Those that may contain media, if known.
    columns: Sequence[str] = ()
    # Plain binary columns seen so far -> whether they contain media.
    _binary: dict[str, bool] = field(default_factory=dict)

    def prompt(self, number: int, row: Row, texts: Sequence[str]) -> Prompt | Skipped:
        """Build a request: media in column order, without bytes to save memory, then the text."""
        origin = f"{self.path}:{number}"
        items, parts = [], []
        for item, modality in self._media(number, row):
            if isinstance(item, Skipped):
                return Skipped(origin, one_line(f"{item.path}: {item.reason}"))
            items.append(drop_data(item))
            parts.append(url_part(PART_OF[modality], url_of(item.path)))
        words = (row[column] for column in texts)
        parts += [text_part(text) for text in words if isinstance(text, str)]
        return Prompt(origin, tuple(items), ChatRequest.of_user(parts))

    def items(self, number: int, row: Row, texts: Sequence[str]) -> Iterator[Item | Skipped]:
        """Yield the media of a row, without bytes if `prompt` uses them too."""
        item = None
        for item, _ in self._media(number, row):
            yield drop_data(item) if texts and isinstance(item, Item) else item
        known = [] if texts or item else [row[name] for name in self.columns]
        if known and all(value in _EMPTY for value in known):
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
            case {"path": str() as path} if is_size(path):
                item = Item(with_tag(path, f"{self.path}:{cell.member}"))
                try:
                    yield item, parse_size(path).modality
                except ValueError as error:
                    yield Skipped(item.path, str(error)), "image"
            case {"path": str() as path}:
                yield self.resolve_path(path), guess_modality(b"", extension_of(path))
            case bytes() if self._binary.setdefault(cell.column, is_media(value)):
                yield self._cell_medium(location, value, "")

    def _cell_medium(self, location: str, data: bytes, path: str) -> _Medium:
        sent = data if len(data) <= MOST_SENT_BYTES else None
        source = ByteSource(self.version, len(data), data=sent)
        return Item(location, byte_source=source), guess_modality(data, extension_of(path))


def guess_modality(data: bytes, ending: str) -> Modality:
    """Guess the modality from first bytes and extension; the probe decides later."""
    kind = sniff(data[:HEAD_BYTES])
    if kind == "audio" or (kind != "image" and ending in AUDIO_EXTENSIONS):
        return "audio"
    video = kind == "container" or (kind != "image" and ending in VIDEO_EXTENSIONS)
    return "video" if video else "image"
