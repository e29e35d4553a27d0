"""Item, Prompt, Skipped, what a request asks of the context."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from mmcalib.domain.shapes import (
    PLAIN,
    Encoded,
    Encoding,
    ImageShape,
    Modality,
    Shape,
    encoded,
    from_row,
    to_row,
    told,
)
from mmcalib.text import PASSING, one_line


@dataclass(frozen=True, slots=True)
class Asked:
    """`messages` turns with `text_bytes` of UTF-8 in all that a template may write of them, after
    normalisation where that is longer; `tool_bytes` are the JSON of its tools. `answer_tokens` are
    those that it asks for, None where it does not say, and `least_answer_tokens` those that it must
    get. Without `plain` it gives the template more than that, whose length nothing bounds.
    """

    messages: int = 1
    text_bytes: int = 0
    tool_bytes: int = 0
    answer_tokens: int | None = None
    plain: bool = True
    least_answer_tokens: int = 0

    @property
    def order(self) -> tuple[int, int, int, int, bool, int]:
        """A sort key."""
        answer = -1 if self.answer_tokens is None else self.answer_tokens
        words = self.messages, self.text_bytes, self.tool_bytes
        return *words, answer, self.plain, self.least_answer_tokens


@dataclass(frozen=True, slots=True)
class ByteSource:
    """What a source knows of bytes that are no file of their own: `version` changes when they do
    (size and time of the archive, an ETag); `data` are slow ones to get.
    """

    version: str
    size_bytes: int
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Item:
    """One medium; `declared` is the modality a request gave it, if any.

    `path` is the absolute path of a file, or a URL in fsspec's spelling: `s3://bucket/cat.jpg`, and
    with the archive behind the member, `tar://cat.jpg::/data/0001.tar`. Then `held` saves a look.
    """

    path: str
    declared: Modality | None = None
    held: ByteSource | None = field(default=None, compare=False, repr=False)


def carried_bytes(item: Item) -> int:
    """How many bytes of the medium are in memory with it."""
    return len(item.held.data) if item.held and item.held.data else 0


def without_data(item: Item) -> Item:
    """The item to remember: the bytes themselves would fill the memory."""
    if item.held is None or item.held.data is None:
        return item
    return replace(item, held=replace(item.held, data=None))


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that could not be read as media, and why. Counted and listed, never dropped.
    `no_media`: a file of another kind, or a folder read already, which only who looked knows; it is
    not kept. `out_of_reach`: its bytes could not be had at all.
    """

    path: str
    reason: str
    no_media: bool = field(default=False, compare=False, repr=False)
    out_of_reach: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TextBound:
    """The most tokens that a text takes: `tokens_per_byte`, and around it those of the template:
    once, per message, per item and, None where they are not bounded, of tools beside their JSON.

    It was at least what vLLM's renderer made of each of `compared` requests; 0: there is no bound.
    """

    base_tokens: int = 0
    message_tokens: int = 0
    item_tokens: dict[Modality, int] = field(default_factory=dict)
    tools_tokens: int | None = None
    tokens_per_byte: int = 1
    compared: int = 0

    def most(self, asked: Asked, items: Mapping[Modality, int]) -> int | None:
        """Tokens of a request beside its items' placeholders; None where nothing bounds them."""
        if not asked.plain or (asked.tool_bytes and self.tools_tokens is None):
            return None
        total = self.base_tokens + self.message_tokens * asked.messages
        total += self.tokens_per_byte * (asked.text_bytes + asked.tool_bytes)
        total += (self.tools_tokens or 0) if asked.tool_bytes else 0
        for modality, count in items.items():
            if count and modality not in self.item_tokens:
                return None
            total += count * self.item_tokens.get(modality, 0)
        return total


@dataclass(frozen=True, slots=True)
class TextCounting:
    """With what transformers comes to vLLM's number of tokens of a text: an item adds the tokens in
    `around` it to those of its placeholder, which may be less than none. Modalities that are not
    there cannot be counted. It agreed with vLLM's renderer on each of `compared` requests. The
    server has the `template`, None for the tokenizer's, before which goes that of the `processor`
    where there are no tools, and gives it `kwargs`. A template of texts gets `marks` for items.
    With `fields` it agreed on tools and other fields, too.
    """

    around: dict[Modality, int] = field(default_factory=dict)
    compared: int = 0
    template: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    processor: str | None = None
    marks: dict[Modality, str] = field(default_factory=dict)
    fields: bool = False


Seen = Shape | Encoded | Skipped

_SKIPPED = "skipped"
_PASSING = tuple(json.dumps([_SKIPPED, why]).removesuffix('"]') for why in PASSING)

# What the readers count with.
_MOST = 1 << 63

# FFmpeg's names of codecs and sample formats.
_NAME = re.compile(r"[a-z0-9_.-]{0,32}")


def encode(seen: Seen) -> str:
    """`["image",640,480]`, or `["skipped","empty file"]`; equal for equal shapes and encodings, of
    which only what is not `PLAIN` follows: `["audio",16000,8000,{"channels":2}]`.
    """
    if isinstance(seen, Skipped):
        return json.dumps([_SKIPPED, seen.reason])
    file = encoded(seen)
    shape, encoding = file.shape, file.encoding
    if isinstance(shape, ImageShape) and encoding == PLAIN:
        return f'["image",{shape.width_px},{shape.height_px}]'
    said = told(encoding)
    return json.dumps([*to_row(shape), *([said] if said else ())])


def decode(path: str, line: str) -> Seen:
    """The reverse, for the item at `path`. Raises ValueError or KeyError for another line."""
    kind, *fields = json.loads(line)
    if kind == _SKIPPED:
        (reason,) = fields
        return Skipped(path, reason)
    if fields and isinstance(fields[-1], dict):
        said = tuple(sorted(fields.pop().items()))
        return Encoded(from_row(kind, fields), _encoding(said))
    return from_row(kind, fields)


@lru_cache(maxsize=1 << 10)
def _encoding(said: tuple[tuple[str, int | str], ...]) -> Encoding:
    """One for all items that are told alike: there are few."""
    return Encoding(**dict(said))  # type: ignore[arg-type]


@lru_cache(maxsize=1 << 12)
def is_sound(line: str) -> bool:
    """Whether it is a line that `encode` could have made."""
    try:
        seen = decode("", line)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    if isinstance(seen, Skipped):
        return isinstance(seen.reason, str) and seen.reason == one_line(seen.reason) != ""
    if isinstance(seen, Encoded):
        said = seen.encoding
        return said != PLAIN and is_encoding(said) and _is_shape(seen.shape)
    return _is_shape(seen)


def _is_shape(shape: Shape) -> bool:
    values = ((getattr(shape, field.name), field.type) for field in fields(shape))
    return all(type(value).__name__ == kind and 0 < value < _MOST for value, kind in values)


def is_encoding(encoding: Encoding) -> bool:
    """Whether its fields have the right types, and what they say is possible."""
    possible = all(
        type(value) is type(getattr(PLAIN, name))
        and (_NAME.fullmatch(value) if isinstance(value, str) else 0 <= value < _MOST)
        for name, value in asdict(encoding).items()
    )
    return possible and encoding.file_mib > 0


def may_pass(line: str) -> bool:
    """Whether the same bytes may be seen otherwise another time: they could not be read at all."""
    return line.startswith(_PASSING)
