"""Items, the text of a request, and the bounds on that text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from mmcalib.domain.shapes import (
    PLAIN,
    EncodedItem,
    Encoding,
    ImageShape,
    Modality,
    Shape,
    as_encoded_item,
    from_row,
    non_default_fields,
    to_row,
)
from mmcalib.text import PASSING


@dataclass(frozen=True, slots=True)
class RequestText:
    """Text of a request: `messages` turns, and `text_bytes` of UTF-8 that a template may write,
    counted after normalisation if that makes it longer; `tool_bytes` is the JSON of its tools.
    `answer_tokens` is the answer length that it requests, None if it sets none; vLLM must grant
    at least `least_answer_tokens`. Not `plain`: it also passes the template input of any length.
    `given`: only the length of the text is known, `text_tokens` of it in tokens. It `alternates` if
    users and assistants take turns, after at most one system message.
    """

    messages: int = 1
    text_bytes: int = 0
    tool_bytes: int = 0
    answer_tokens: int | None = None
    plain: bool = True
    least_answer_tokens: int = 0
    given: bool = False
    text_tokens: int = 0
    alternates: bool = True

    @property
    def is_countable(self) -> bool:
        """True if a request has its words, or as many tokens of others."""
        return not self.given or not (self.text_bytes or self.tool_bytes)

    @property
    def sort_key(self) -> tuple[int, int, int, int, bool, int, bool, int, bool]:
        answer = -1 if self.answer_tokens is None else self.answer_tokens
        words = self.messages, self.text_bytes, self.tool_bytes, answer, self.plain
        return *words, self.least_answer_tokens, self.given, self.text_tokens, self.alternates


@dataclass(frozen=True, slots=True)
class ByteSource:
    """Bytes that are not a file of their own; `data` holds those that are slow to fetch."""

    version: str  # Changes with the bytes: size and time of the archive, or an ETag.
    size_bytes: int
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Item:
    """One image, video or clip; `declared` is the modality that a request gave it, if any. `path`
    is absolute, or a URL in fsspec's spelling: `s3://bucket/cat.jpg`, or for a member of an archive
    `tar://cat.jpg::/data/0001.tar`; then `byte_source` saves a lookup.
    """

    path: str
    declared: Modality | None = None
    byte_source: ByteSource | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[Item], tuple[object, ...]]:
        """Pickle it five times faster than dataclasses do: a million items pass a pipe."""
        return Item, (self.path, self.declared, self.byte_source)


def loaded_bytes(item: Item) -> int:
    """Bytes of the medium that are in memory with it."""
    return len(item.byte_source.data) if item.byte_source and item.byte_source.data else 0


def drop_data(item: Item) -> Item:
    """Return the item without its bytes, which would fill the memory."""
    if item.byte_source is None or item.byte_source.data is None:
        return item
    return replace(item, byte_source=replace(item.byte_source, data=None))


def download_mib(files: Iterable[EncodedItem]) -> int:
    """MiB that the server downloads for a request with these files; vLLM rounds each one up."""
    return sum(file.encoding.file_mib for file in files if file.encoding.fetched)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that could not be read as media, and why. Counted and listed, never dropped.
    `no_media`: a file of another kind, or a folder that was read before; only the scanner knows
    this, so it is not stored. `out_of_reach`: its bytes could not be fetched.
    """

    path: str
    reason: str
    no_media: bool = field(default=False, compare=False, repr=False)
    out_of_reach: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TextBound:
    """Upper bound on the tokens of a text: `tokens_per_byte`, plus the template's: once, per
    message, per item and for tools besides their JSON (None if unbounded).

    It was at least what vLLM's renderer returned for each of `compared` requests; 0: no bound.
    With `refuses_orders` the template refuses some conversations that do not alternate.
    """

    base_tokens: int = 0
    message_tokens: int = 0
    item_tokens: dict[Modality, int] = field(default_factory=dict)
    tools_tokens: int | None = None
    tokens_per_byte: int = 1
    compared: int = 0
    refuses_orders: bool = False

    def may_refuse(self, request: RequestText) -> bool:
        return self.refuses_orders and not request.alternates

    def max_tokens(self, request: RequestText, items: Mapping[Modality, int]) -> int | None:
        """Tokens of a request without its items' placeholders; None if unbounded or refused."""
        is_modelled = request.plain and not self.may_refuse(request)
        if not is_modelled or (request.tool_bytes and self.tools_tokens is None):
            return None
        total = self.base_tokens + self.message_tokens * request.messages
        total += self.tokens_per_byte * (request.text_bytes + request.tool_bytes)
        total += request.text_tokens
        total += (self.tools_tokens or 0) if request.tool_bytes else 0
        for modality, count in items.items():
            if count and modality not in self.item_tokens:
                return None
            total += count * self.item_tokens.get(modality, 0)
        return total


@dataclass(frozen=True, slots=True)
class TextCounting:
    """How to get vLLM's token count of a text from transformers.

    An item adds the tokens `around` it, maybe negative, to those of its placeholder; modalities
    without an entry cannot be counted. The count matched vLLM's renderer on each of `compared`
    requests, and with `fields` on tools and other fields too. The server uses `template`, or the
    tokenizer's if None, with `kwargs`; without tools, that of the `processor` takes precedence. A
    template for plain text gets `marks` for items. vLLM fails if a prompt has fewer
    of the `written` marks than items.
    """

    around: dict[Modality, int] = field(default_factory=dict)
    compared: int = 0
    template: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    processor: str | None = None
    marks: dict[Modality, str] = field(default_factory=dict)
    fields: bool = False
    written: dict[Modality, str] = field(default_factory=dict)


ProbedMedia = Shape | EncodedItem | Skipped

_SKIPPED = "skipped"
_PASSING = tuple(json.dumps([_SKIPPED, why]).removesuffix('"]') for why in PASSING)


def encode_line(seen: ProbedMedia) -> str:
    """Write one line: `["image",640,480]`, or `["skipped","empty file"]`. Equal for equal shapes
    and encodings. Only fields unlike `PLAIN` follow: `["audio",16000,8000,{"channels":2}]`.
    """
    if isinstance(seen, Skipped):
        return json.dumps([_SKIPPED, seen.reason])
    file = as_encoded_item(seen)
    shape, encoding = file.shape, file.encoding
    if isinstance(shape, ImageShape) and encoding == PLAIN:
        return f'["image",{shape.width_px},{shape.height_px}]'
    file_fields = non_default_fields(encoding)
    return json.dumps([*to_row(shape), *([file_fields] if file_fields else ())])


def decode_line(path: str, line: str) -> ProbedMedia:
    """Reverse `encode_line`. Raises ValueError or KeyError for another line."""
    kind, *fields = json.loads(line)
    if kind == _SKIPPED:
        (reason,) = fields
        return Skipped(path, reason)
    if fields and isinstance(fields[-1], dict):
        file_fields = tuple(sorted(fields.pop().items()))
        return EncodedItem(from_row(kind, fields), _shared_encoding(file_fields))
    return from_row(kind, fields)


@lru_cache(maxsize=1 << 10)
def _shared_encoding(file_fields: tuple[tuple[str, int | str], ...]) -> Encoding:
    """Share one object among equal encodings: there are few."""
    return Encoding(**dict(file_fields))  # type: ignore[arg-type]


def is_transient(line: str) -> bool:
    """Check whether a retry may differ: the bytes could not be read."""
    return line.startswith(_PASSING)
