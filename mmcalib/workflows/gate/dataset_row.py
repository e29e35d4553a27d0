"""A row of a dataset as one prompt: its media, wherever in it they stand, and its words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcalib.corpus.asking import KEPT
from mmcalib.corpus.custom import is_custom
from mmcalib.corpus.rows import TEXT_COLUMNS
from mmcalib.domain.encoding import Encoded
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape, flaw
from mmcalib.media.file_names import IMAGE_ENDINGS
from mmcalib.media.sniff import HEAD_BYTES, is_media
from mmcalib.workflows.gate.arrays import is_array, is_sound, layout_of
from mmcalib.workflows.gate.held import is_cell, is_picture, what

_WORDS = r"image|img|photo|picture|pic|frame|video|clip|audio|sound|speech"
# Columns whose strings name media, and whose arrays are such: others hold labels and embeddings.
_MEDIA_COLUMN = re.compile(rf"({_WORDS})s?([_ ]?(path|url|uri|file|file_?name))?s?", re.IGNORECASE)
_NAME_COLUMN = re.compile(r"path|file|file_?name|file_?path|url|uri", re.IGNORECASE)
_SOUND_COLUMN = re.compile(r"audio|sound|speech|waveform|amplitude", re.IGNORECASE)
_RATE_COLUMNS = ("sampling_rate", "sample_rate", "sample_rate_hz", "rate")
# Tables of pictures that are elsewhere, such as LAION's and DataComp's, give their sizes.
_SIZE_COLUMNS = [(f"{whose}width", f"{whose}height") for whose in ("", "image_", "original_")]
_MOVING_COLUMN = re.compile(
    r"(video|clip|audio|sound|speech).*|fps|(num_|n_)?frames|duration.*", re.IGNORECASE
)
_MESSAGES, _BODY = "messages", "body"

Step = str | int
Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class RowMedium:
    """Where in a row it stands, and the medium as the row holds it."""

    at: Path
    medium: Any


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """`turns` are the words of each message, with its role: one of the user where a row has no
    messages. `fields` are those of a request that bear on its length. `size` is what columns say of
    its only picture; `empty` is the column that should hold its medium and does not.
    """

    media: Sequence[RowMedium]
    turns: Sequence[tuple[str, str]]
    fields: Mapping[str, Any]
    size: ImageShape | None = None
    empty: str = ""


def dataset_row(row: Mapping[str, Any]) -> DatasetRow | None:
    """None for a chat request whose media, if any, are URLs. Raises TypeError for neither."""
    media = list(_held(row)) or ([] if _asks(row) else list(_named(row)))
    turns = list(_turns(row))
    empty = "" if media else _empty_column(row, with_words=bool(turns))
    if not media and (_MESSAGES in row or _BODY in row or (is_custom(row) and not empty)):
        return None
    size = _size(row) if len(media) < 2 else None
    if size and not media and not empty:
        media = [RowMedium((), size)]
    if not media and not turns and not empty:
        raise TypeError(f"this is {what(row)}: name one image, video, audio or path")
    fields = {name: row[name] for name in KEPT if row.get(name) is not None}
    return DatasetRow(media, turns, fields, None if size and flaw(size) else size, empty)


def replaced(row: Mapping[str, Any], at: Path, medium: Any) -> dict[str, Any]:
    """A copy of the row with another medium there, or another size in its columns; the rest is
    shared.
    """
    if not at:
        width, height = _size_columns(row)
        return {**row, width: medium.width_px, height: medium.height_px}
    made: dict[str, Any] = _with(dict(row), at, medium)
    return made


def _with(holder: Any, at: Path, medium: Any) -> Any:
    if not at:
        return medium
    step, rest = at[0], at[1:]
    if isinstance(holder, Mapping):
        return {**holder, step: _with(holder[step], rest, medium)}
    kept = list(holder)
    kept[int(step)] = _with(kept[int(step)], rest, medium)
    return type(holder)(kept) if isinstance(holder, list | tuple) else kept


def _asks(row: Mapping[str, Any]) -> bool:
    """Whether it is a request whose media are named in it."""
    if _MESSAGES in row or _BODY in row:
        return True
    return is_custom(row) and ("image_files" in row or not any(True for _ in _named(row)))


def _held(row: Mapping[str, Any]) -> Iterator[RowMedium]:
    for column, value in row.items():
        if column == _MESSAGES:
            yield from _of_messages(value)
        elif _is_held(value, str(column), row):
            yield RowMedium((column,), _sounding(value, str(column), row))
        elif isinstance(value, list | tuple):
            for place, one in enumerate(value):
                if _is_held(one, str(column), row):
                    yield RowMedium((column, place), one)


def _of_messages(messages: Any) -> Iterator[RowMedium]:
    """Media that stand in the parts of a chat themselves, not their URLs."""
    for turn, message in enumerate(messages if isinstance(messages, list | tuple) else ()):
        content = message.get("content") if isinstance(message, Mapping) else None
        for place, part in enumerate(content if isinstance(content, list | tuple) else ()):
            for name, value in part.items() if isinstance(part, Mapping) else ():
                if _is_held(value, str(name), part):
                    yield RowMedium((_MESSAGES, turn, "content", place, name), value)


def _is_held(value: Any, column: str, row: Mapping[str, Any]) -> bool:
    if isinstance(value, Encoded | ImageShape | VideoShape | AudioShape):
        return True
    if isinstance(value, bytes | bytearray | memoryview):
        return is_media(bytes(value[:HEAD_BYTES]))
    if is_cell(value) or hasattr(value, "_hf_encoded"):
        return True
    if isinstance(value, tuple) and len(value) == 2 and is_array(value[0]):
        return is_sound(*value)
    if is_array(value):
        return _is_pictured(value, column) or _sound_rate(value, column, row) is not None
    return is_picture(value)


def _is_pictured(array: Any, column: str) -> bool:
    # `webdataset` names a member of a sample by its extension.
    named = column.rpartition(".")[2].lower() in IMAGE_ENDINGS or _MEDIA_COLUMN.fullmatch(column)
    return bool(named and layout_of(array))


def _sounding(value: Any, column: str, row: Mapping[str, Any]) -> Any:
    """Samples whose rate stands in a column of its own, together with it."""
    rate = _sound_rate(value, column, row) if is_array(value) else None
    return value if rate is None else (value, rate)


def _sound_rate(value: Any, column: str, row: Mapping[str, Any]) -> Any:
    if not _SOUND_COLUMN.fullmatch(column):
        return None
    rates = (row[name] for name in _RATE_COLUMNS if name in row)
    return next((rate for rate in rates if is_sound(value, rate)), None)


def _named(row: Mapping[str, Any]) -> Iterator[RowMedium]:
    """Paths and URLs; a bare `path` only where no column says what medium it names."""
    for pattern in (_MEDIA_COLUMN, _NAME_COLUMN):
        found = list(_strings(row, pattern))
        yield from found
        if found:
            return


def _strings(row: Mapping[str, Any], pattern: re.Pattern[str]) -> Iterator[RowMedium]:
    for column, value in row.items():
        if not pattern.fullmatch(str(column)):
            continue
        if isinstance(value, str) and value:
            yield RowMedium((column,), value)
        elif isinstance(value, list | tuple):
            for place, one in enumerate(value):
                if isinstance(one, str) and one:
                    yield RowMedium((column, place), one)


def _turns(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    messages = row.get(_MESSAGES)
    if isinstance(messages, list | tuple):
        for message in messages:
            if isinstance(message, Mapping):
                yield str(message.get("role", "user")), _said(message.get("content"))
        return
    words = [v for c, v in row.items() if str(c).lower() in TEXT_COLUMNS and isinstance(v, str)]
    if words:
        yield "user", "\n".join(words)


def _said(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))


def _size_columns(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of width and height, whatever their case; none where the row is of a clip or sound."""
    columns = {str(column).lower(): column for column in row}
    if any(map(_MOVING_COLUMN.fullmatch, columns)):
        return ()
    both = next((pair for pair in _SIZE_COLUMNS if columns.keys() >= set(pair)), ())
    return tuple(columns[name] for name in both)


def _size(row: Mapping[str, Any]) -> ImageShape | None:
    sides = [row[column] for column in _size_columns(row)]
    if not sides:
        return None
    # pandas has whole numbers as floats where another row has none.
    return ImageShape(*(int(s) if isinstance(s, float) and s.is_integer() else s for s in sides))


def _empty_column(row: Mapping[str, Any], *, with_words: bool) -> str:
    """The column of media that has none in this row. A list without any is a text's own affair."""
    for column, value in row.items():
        if _MEDIA_COLUMN.fullmatch(str(column)) and (
            value is None
            or (isinstance(value, str) and not value)
            or (isinstance(value, float) and math.isnan(value))
            or (isinstance(value, Mapping) and not any(value.values()))
            or (isinstance(value, list | tuple) and not value and not with_words)
        ):
            return str(column)
    return ""
