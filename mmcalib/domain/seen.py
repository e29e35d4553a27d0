"""What was seen of an item, as one short line: what workers answer with and the cache keeps."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from functools import lru_cache
from typing import cast

from mmcalib.domain.encoding import PLAIN, Encoded, Encoding, encoded, told
from mmcalib.domain.items import Skipped
from mmcalib.domain.shape_codec import from_row, to_row
from mmcalib.domain.shapes import ImageShape, Shape
from mmcalib.wording import PASSING, one_line

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
    return all(_is_size(getattr(shape, field.name), field.type) for field in fields(shape))


def is_encoding(encoding: Encoding) -> bool:
    """Whether its fields have the right types, and what they say is possible."""
    for name, value in asdict(encoding).items():
        if type(value) is not type(getattr(PLAIN, name)):
            return False
        if isinstance(value, str) and not _NAME.fullmatch(value):
            return False
        if isinstance(value, int) and not 0 <= value < _MOST:
            return False
    return encoding.file_mib > 0


def _is_size(value: object, kind: object) -> bool:
    return type(value).__name__ == kind and 0 < cast("float", value) < _MOST


def may_pass(line: str) -> bool:
    """Whether the same bytes may be seen otherwise another time: they could not be read at all."""
    return line.startswith(_PASSING)
