"""The shape of one item from its header. A failure is a value, not an exception."""

from __future__ import annotations

import math
import os
import stat
from dataclasses import replace
from typing import BinaryIO, cast

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import PLAIN, Encoded, ImageShape, Modality, Shape, mib
from mmcalib.errors import UsageError
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
from mmcalib.media.failure import NotMedia, Unreadable, failures, reason
from mmcalib.media.image import image_shape
from mmcalib.media.sniff import ANIMATED, HEAD_BYTES, Kind, sniff
from mmcalib.storage.location import BEHIND, NOT_REGULAR, Location, Opened, open_item
from mmcalib.text import MIB, one_line

_NOT_MEDIA = "not an image, video or audio file"

# What a server fetches itself, within its bound.
_FETCHED = ("http://", "https://")

# Files of which only what a request declares them to be can tell what they are.
_BY_DECLARATION: dict[Modality, Kind] = {"image": "image", "video": "container", "audio": "audio"}


def examine(item: Item) -> Encoded | Skipped:
    """The item's shape by content, whatever its name says, and how it is held; `Skipped` when
    there is none.

    Raises UsageError when what opens such items is not installed.

    Reads headers only: a file whose tail is cut off passes (`decode_check` finds it). Also
    `Skipped` when a request declared another modality than the file has.
    """
    try:
        seen = _of_file(item) if is_plain_file(item) else _of_bytes(item)
    except failures() as error:
        return Skipped(item.path, reason(error), no_media=isinstance(error, NotMedia))
    if item.declared not in (None, seen.modality):
        return Skipped(item.path, f"declared {item.declared}, is {seen.modality}")
    return seen


def probe(item: Item) -> Shape | Skipped:
    """The same, without how it is held."""
    seen = examine(item)
    return seen if isinstance(seen, Skipped) else seen.shape


def is_plain_file(item: Item) -> bool:
    """Whether C libraries can open it by its name."""
    return item.path[:1] == "/" or Location.of(item.path).is_file


def _of_file(item: Item) -> Encoded:
    # Opening a FIFO would wait for a writer.
    status = os.stat(item.path)
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(NOT_REGULAR)
    with open_bounded(item.path, status.st_size) as file:
        kind = _kind(file.read(HEAD_BYTES), item.declared)
        if kind == "image":
            return _image(file, status.st_size, item)
        return _sized(_stream(kind, item.path, file, item.declared), status.st_size, item)


def _of_bytes(item: Item) -> Encoded:
    with open_item(item) as opened:
        kind = _kind(opened.file.read(HEAD_BYTES), item.declared)
        size_bytes = opened.size_bytes
        if kind == "image":
            opened.file.seek(0)
            return _image(bounded(opened.file, size_bytes), size_bytes, item)
        medium = medium_of(item, opened)
        found = _stream(kind, medium, cast("BinaryIO", medium), item.declared)
        return _sized(found, size_bytes, item)


def _kind(head: bytes, declared: Modality | None) -> Kind:
    """By content; of what has no mark, and of animations, by what a request says, as vLLM does."""
    kind = sniff(head)
    if declared == "video" and head.startswith(ANIMATED):
        return "container"
    return _BY_DECLARATION[declared] if kind == "unknown" and declared else kind


def _image(file: BinaryIO, size_bytes: int, item: Item) -> Encoded:
    shape = image_shape(file, any_format=item.declared == "image")
    if size_bytes <= MIB and not item.path.startswith(_FETCHED):
        return Encoded(shape, PLAIN)
    return _sized(Encoded(shape), size_bytes, item)


def _sized(found: Encoded, size_bytes: int, item: Item) -> Encoded:
    fetched = item.path.startswith(_FETCHED)
    held = replace(found.encoding, file_mib=mib(size_bytes), fetched=fetched)
    return Encoded(found.shape, held)


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


def _stream(kind: Kind, medium: Medium, file: BinaryIO, declared: Modality | None) -> Encoded:
    if kind in ("container", "audio"):
        # These take five times as long to import as the rest, and may never be needed. An
        # installation without its libraries is no damage of the file, and is not remembered.
        try:
            import av  # noqa: F401
            import soundfile  # noqa: F401
        except (ImportError, OSError) as error:
            raise UsageError(
                one_line(f"video and sound cannot be read here: {error}"),
                hint="pip install --force-reinstall av soundfile",
            ) from error
    if kind == "container":
        from mmcalib.media.video import container_shape

        return container_shape(medium, file, declared)
    if kind == "audio":
        from mmcalib.media.audio import audio_shape

        return audio_shape(medium)
    if kind == "frames":
        from mmcalib.media.video import frames_shape

        return frames_shape(file)
    if kind == "empty":
        raise Unreadable("empty file")
    raise NotMedia(f"{_NOT_MEDIA} (text)" if kind == "text" else _NOT_MEDIA)


# Cameras and editors write this much behind a picture's end, hardly more.
_TAIL_BYTES = 1 << 16
_HEAD_BYTES = 4
_JPEG, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_PNG, _PNG_END = b"\x89PNG", b"IEND"


def examine_whole(item: Item) -> Encoded | Skipped:
    """As `examine`, and of a picture whether its end is there: one read more,
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
    """Whether a picture ends where its format says: of one that was cut short, the header is whole.

    Of JPEG and PNG; other formats say nothing that is cheap to know.
    """
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    for start, end in ((_JPEG, _JPEG_END), (_PNG, _PNG_END)):
        if head.startswith(start):
            file.seek(max(0, size_bytes - _TAIL_BYTES))
            return end not in file.read(_TAIL_BYTES)
    return False
