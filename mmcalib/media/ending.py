"""Whether a picture ends where its format says: of one that was cut short, the header is whole."""

from __future__ import annotations

from dataclasses import replace
from typing import BinaryIO

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import Encoded, ImageShape
from mmcalib.media.failure import failures
from mmcalib.media.probe import examine
from mmcalib.storage.location import open_item

# Cameras and editors write this much behind a picture's end, hardly more.
_TAIL_BYTES = 1 << 16
_HEAD_BYTES = 4
_JPEG, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_PNG, _PNG_END = b"\x89PNG", b"IEND"


def examine_whole(item: Item) -> Encoded | Skipped:
    """As `mmcalib.media.probe.examine`, and of a picture whether its end is there: one read more,
    nothing is decoded.
    """
    seen = examine(item)
    if isinstance(seen, Skipped) or not isinstance(seen.shape, ImageShape):
        return seen
    try:
        with open_item(item) as opened:
            short = cut_short(opened.file, opened.size_bytes)
    except failures():
        return seen
    return replace(seen, encoding=replace(seen.encoding, cut_short=True)) if short else seen


def cut_short(file: BinaryIO, size_bytes: int) -> bool:
    """Of JPEG and PNG; other formats say nothing that is cheap to know."""
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    for start, end in ((_JPEG, _JPEG_END), (_PNG, _PNG_END)):
        if head.startswith(start):
            file.seek(max(0, size_bytes - _TAIL_BYTES))
            return end not in file.read(_TAIL_BYTES)
    return False
