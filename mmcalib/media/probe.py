"""The shape of one item from its header. A failure is a value, not an exception."""

from __future__ import annotations

import math
import os
import stat
from typing import BinaryIO, cast

from mmcalib.census.shapes import Modality, Shape
from mmcalib.corpus.item import Item, Skipped
from mmcalib.corpus.locations.disk import NOT_REGULAR
from mmcalib.corpus.locations.location import BEHIND, Location
from mmcalib.corpus.locations.opening import Opened, open_item
from mmcalib.media.bounded import (
    MOST_DECODED_BYTES,
    MOST_DECODING_READS,
    MOST_PROBED_BYTES,
    MOST_PROBED_S,
    MOST_READS,
    Bounded,
    Medium,
    bounded,
    open_bounded,
)
from mmcalib.media.failure import Unreadable, failures, reason
from mmcalib.media.image import image_shape
from mmcalib.media.sniff import HEAD_BYTES, Kind, sniff

NOT_MEDIA = "not an image, video or audio file"


def probe(item: Item) -> Shape | Skipped:
    """The item's shape by content, whatever its name says; `Skipped` when there is none.

    Raises UsageError when what opens such items is not installed.

    Reads headers only: a file whose tail is cut off passes (`decode_check` finds it). Also
    `Skipped` when a request declared another modality than the file has.
    """
    try:
        shape = _of_file(item) if is_plain_file(item) else _of_bytes(item)
    except failures() as error:
        return Skipped(item.path, reason(error))
    if item.declared not in (None, shape.modality):
        return Skipped(item.path, f"declared {item.declared}, is {shape.modality}")
    return shape


def is_plain_file(item: Item) -> bool:
    """Whether C libraries can open it by its name."""
    return item.path[:1] == "/" or Location.of(item.path).is_file


def _of_file(item: Item) -> Shape:
    # Opening a FIFO would wait for a writer.
    status = os.stat(item.path)
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(NOT_REGULAR)
    with open_bounded(item.path, status.st_size) as file:
        kind = sniff(file.read(HEAD_BYTES))
        if kind == "image":
            return image_shape(file)
        return _stream(kind, item.path, file, item.declared)


def _of_bytes(item: Item) -> Shape:
    with open_item(item) as opened:
        kind = sniff(opened.file.read(HEAD_BYTES))
        if kind == "image":
            opened.file.seek(0)
            return image_shape(bounded(opened.file, opened.size_bytes))
        medium = medium_of(item, opened)
        return _stream(kind, medium, cast("BinaryIO", medium), item.declared)


def medium_of(item: Item, opened: Opened, *, whole: bool = False) -> Bounded:
    """The opened item from its start, as far as a probe, or a `whole` decoding, may read it."""
    opened.file.seek(0)
    return Bounded(
        opened.file,
        opened.size_bytes,
        what="medium",
        most_bytes=MOST_DECODED_BYTES if whole else MOST_PROBED_BYTES,
        most_reads=MOST_DECODING_READS if whole else MOST_READS,
        most_s=math.inf if whole else MOST_PROBED_S,
        name=os.path.basename(item.path.partition(BEHIND)[0]),
    )


def _stream(kind: Kind, medium: Medium, file: BinaryIO, declared: Modality | None) -> Shape:
    # These take five times as long to import as the rest, and may never be needed.
    if kind == "container":
        from mmcalib.media.video import container_shape

        return container_shape(medium, file, declared)
    if kind == "audio":
        from mmcalib.media.audio import audio_shape

        return audio_shape(medium)
    if kind == "empty":
        raise Unreadable("empty file")
    raise Unreadable(f"{NOT_MEDIA} (text)" if kind == "text" else NOT_MEDIA)
