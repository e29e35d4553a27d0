"""The shape of one item from its header. A failure is a value, not an exception."""

from __future__ import annotations

import os
import stat

from mmcalib.census.shapes import Modality, Shape
from mmcalib.corpus.item import Item, Skipped
from mmcalib.media.audio import audio_shape
from mmcalib.media.bounded import bounded
from mmcalib.media.failure import READ_ERRORS, Unreadable, reason
from mmcalib.media.image import image_shape
from mmcalib.media.sniff import HEAD_BYTES, sniff
from mmcalib.media.video import container_shape

NOT_MEDIA = "not an image, video or audio file"


def probe(item: Item) -> Shape | Skipped:
    """The item's shape by content, whatever its name says; `Skipped` when there is none.

    Reads headers only: a file whose tail is cut off passes (`decode_check` finds it). Also
    `Skipped` when a request declared another modality than the file has.
    """
    try:
        shape = _shape(item.path, item.declared)
    except Unreadable as error:
        return Skipped(item.path, str(error))
    except READ_ERRORS as error:
        return Skipped(item.path, reason(error))
    if item.declared not in (None, shape.modality):
        return Skipped(item.path, f"declared {item.declared}, is {shape.modality}")
    return shape


def _shape(path: str, declared: Modality | None) -> Shape:
    # Opening a FIFO would wait for a writer.
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("not a regular file")
    with open(path, "rb") as file:
        kind = sniff(file.read(HEAD_BYTES))
        if kind == "image":
            file.seek(0)
            return image_shape(bounded(file, status.st_size))
    if kind == "container":
        return container_shape(path, declared)
    if kind == "audio":
        return audio_shape(path)
    if kind == "empty":
        raise Unreadable("empty file")
    raise Unreadable(f"{NOT_MEDIA} (text)" if kind == "text" else NOT_MEDIA)
