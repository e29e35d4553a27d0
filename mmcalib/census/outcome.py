"""What was seen of an item, as one short line: what workers answer with and the cache keeps."""

from __future__ import annotations

import json
from dataclasses import astuple

from mmcalib.census.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.corpus.item import Skipped

Seen = Shape | Skipped

_SKIPPED = "skipped"
_KINDS: dict[str, type[ImageShape] | type[VideoShape] | type[AudioShape]] = {
    "image": ImageShape,
    "video": VideoShape,
    "audio": AudioShape,
}


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
