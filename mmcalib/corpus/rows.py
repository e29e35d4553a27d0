"""A row of a table: which of its columns are media, and which are the words of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmcalib.corpus.chat import PART_OF, ChatRequest, Prompt, text_part, url_part
from mmcalib.domain.items import ByteSource, Item, Skipped, without_data
from mmcalib.domain.shapes import Modality
from mmcalib.media.sniff import HEAD_BYTES, SOUND_ENDINGS, VIDEO_ENDINGS, ending_of, is_media, sniff
from mmcalib.storage.location import inside, url_of
from mmcalib.storage.tables import Cell
from mmcalib.text import one_line

# A table with a column of one of these names, holding strings, is a table of prompts.
TEXT_COLUMNS = frozenset(("prompt", "question", "text", "caption", "query", "instruction"))

# Bytes of larger media do not travel with their item: they are read again where they are needed.
MOST_SENT_BYTES = 1 << 24

# From the path in a cell without bytes to what it names.
Named = Callable[[str], Item | Skipped]
Row = Mapping[str, object]


# One medium of a row: what to count, and what kind of content part it would be.
_Medium = tuple[Item | Skipped, Modality]


@dataclass(slots=True)
class Table:
    """How the rows of the table at `path` are read; `scheme` opens what is in it.

    Media stand in cells of `{bytes, path}` as `datasets` writes them, in lists of those, and in
    plain binary columns whose first value begins as media do.
    """

    scheme: str
    path: str
    version: str
    named: Named
    # Plain binary columns of which a value was seen: whether they hold media.
    _binary: dict[str, bool] = field(default_factory=dict)

    def prompt(self, number: int, row: Row, texts: Sequence[str]) -> Prompt | Skipped:
        """The row as one request: media in the order of the columns, then the words.

        Its items have no bytes with them, because requests are remembered.
        """
        origin = f"{self.path}:{number}"
        items, parts = [], []
        for found, modality in self._media(number, row):
            if isinstance(found, Skipped):
                return Skipped(origin, one_line(f"{found.path}: {found.reason}"))
            items.append(without_data(found))
            parts.append(url_part(PART_OF[modality], url_of(found.path)))
        words = (row[column] for column in texts)
        parts += [text_part(text) for text in words if isinstance(text, str)]
        return Prompt(origin, tuple(items), ChatRequest.of_user(parts))

    def items(self, number: int, row: Row, texts: Sequence[str]) -> Iterator[Item | Skipped]:
        """The media of a row; those that `prompt` named too have no bytes with them."""
        for found, _ in self._media(number, row):
            yield without_data(found) if texts and isinstance(found, Item) else found

    def _media(self, number: int, row: Row) -> Iterator[_Medium]:
        """The media of a row; an empty cell is none."""
        for column, value in row.items():
            if isinstance(value, list | tuple):
                for place, one in enumerate(value):
                    yield from self._medium(Cell(number, column, place), one)
            else:
                yield from self._medium(Cell(number, column), value)

    def _medium(self, cell: Cell, value: object) -> Iterator[_Medium]:
        location = inside(self.scheme, cell.member, self.path)
        match value:
            case {"bytes": bytes() as data, **rest}:
                yield self._held(location, data, str(rest.get("path") or ""))
            case {"path": str() as path}:
                yield self.named(path), guessed_modality(b"", ending_of(path))
            case bytes() if self._is_media(cell.column, value):
                yield self._held(location, value, "")

    def _is_media(self, column: str, value: bytes) -> bool:
        if column not in self._binary:
            self._binary[column] = is_media(value)
        return self._binary[column]

    def _held(self, location: str, data: bytes, path: str) -> _Medium:
        sent = data if len(data) <= MOST_SENT_BYTES else None
        held = ByteSource(self.version, len(data), data=sent)
        return Item(location, held=held), guessed_modality(data, ending_of(path))


def guessed_modality(data: bytes, ending: str) -> Modality:
    """Of what begins so and has such a name; the probe says what it is."""
    kind = sniff(data[:HEAD_BYTES])
    if kind == "audio" or (kind != "image" and ending in SOUND_ENDINGS):
        return "audio"
    video = kind == "container" or (kind != "image" and ending in VIDEO_ENDINGS)
    return "video" if video else "image"
