"""What was seen of an item, as one short line: what workers answer with and the cache keeps."""

from __future__ import annotations

import json
from dataclasses import astuple, fields
from functools import lru_cache
from typing import cast

from mmcalib.census.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.corpus.item import Skipped
from mmcalib.corpus.wording import PASSING, one_line

Seen = Shape | Skipped

_SKIPPED = "skipped"
_KINDS: dict[str, type[ImageShape] | type[VideoShape] | type[AudioShape]] = {
    "image": ImageShape,
    "video": VideoShape,
    "audio": AudioShape,
}

_PASSING = tuple(json.dumps([_SKIPPED, why]).removesuffix('"]') for why in PASSING)

# What the readers count with.
_MOST = 1 << 63


def encode(seen: Seen) -> str:
    """`["image",640,480]`, or `["skipped","empty file"]`; equal for equal shapes."""
    if isinstance(seen, Skipped):
        return json.dumps([_SKIPPED, seen.reason])
    if isinstance(seen, ImageShape):
        return f'["image",{seen.width_px},{seen.height_px}]'
    return json.dumps([seen.modality, *astuple(seen)])


def decode(path: str, line: str) -> Seen:
    """The reverse, for the item at `path`. Raises ValueError or KeyError for another line."""
    kind, *fields = json.loads(line)
    return Skipped(path, *fields) if kind == _SKIPPED else _KINDS[kind](*fields)


@lru_cache(maxsize=1 << 12)
def is_sound(line: str) -> bool:
    """Whether it is a line that `encode` could have made."""
    try:
        seen = decode("", line)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    if isinstance(seen, Skipped):
        return isinstance(seen.reason, str) and seen.reason == one_line(seen.reason) != ""
    return all(_is_size(getattr(seen, field.name), field.type) for field in fields(seen))


def _is_size(value: object, kind: object) -> bool:
    return type(value).__name__ == kind and 0 < cast("float", value) < _MOST


def may_pass(line: str) -> bool:
    """Whether the same bytes may be seen otherwise another time: they could not be read at all."""
    return line.startswith(_PASSING)
