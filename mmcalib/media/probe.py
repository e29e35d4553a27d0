"""Read the shape of one item from its header. A failure is a value, not an exception."""

from __future__ import annotations

import math
import os
import stat
from dataclasses import replace
from typing import BinaryIO, cast

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import (
    EncodedItem,
    ImageShape,
    Modality,
    Shape,
    VideoShape,
    is_size,
    parse_size,
)
from mmcalib.errors import UsageError
from mmcalib.media import bounded
from mmcalib.media.failure import NotMedia, Unreadable, error_reason, media_errors
from mmcalib.media.headers import is_video_truncated
from mmcalib.media.image import image_shape, is_truncated, load_picture
from mmcalib.media.sniff import (
    ANIMATED,
    APNG,
    CURSOR,
    HEAD_BYTES,
    KIND_OF_EXTENSION,
    Kind,
    extension_of,
    sniff,
)
from mmcalib.storage.access import open_item
from mmcalib.storage.location import MEMBER_MARK, NOT_REGULAR, Location, Opened, is_http
from mmcalib.text import MIB, one_line

# Pixels that take 100 MB to decode.
_SMALL_PX = 1 << 25
_NOT_MEDIA = "not an image, video or audio file"

# The kind of a file without a signature, by the modality that a request declares.
_BY_DECLARATION: dict[Modality, Kind] = {"image": "image", "video": "container", "audio": "audio"}


def examine(item: Item, sound: bool = False) -> EncodedItem | Skipped:
    """Return the item's shape and encoding by content; `Skipped` if it has none, or if a request
    declared another modality.

    With `sound`, video files count as their audio unless a request declares them, as vLLM does for
    models without video. Reads only headers. Raises UsageError if a library is missing.
    """
    try:
        seen = _read_header(item, sound)
    except media_errors() as error:
        return Skipped(item.path, error_reason(error), no_media=isinstance(error, NotMedia))
    if item.declared not in (None, seen.modality):
        return Skipped(item.path, f"declared as {item.declared}, but is {seen.modality}")
    return seen


def probe(item: Item) -> Shape | Skipped:
    """Return the item's shape without its encoding, as `examine` finds it."""
    seen = examine(item)
    return seen if isinstance(seen, Skipped) else seen.shape


def _read_header(item: Item, sound: bool) -> EncodedItem:
    if is_size(item.path):
        try:
            return parse_size(item.path)
        except ValueError as error:
            raise Unreadable(str(error)) from error
    # Opening a FIFO would wait for a writer.
    if Location.of(item.path).is_file and not stat.S_ISREG(os.stat(item.path).st_mode):
        raise Unreadable(NOT_REGULAR)
    with open_item(item) as opened:
        kind, has_signature = _kind(opened.file.read(HEAD_BYTES), item)
        size_bytes, file = opened.size_bytes, bounded.limit_reads(opened.file, opened.size_bytes)
        if kind == "image":
            file.seek(0)
            any_format = item.declared == "image" or not has_signature
            shape = image_shape(file, any_format=any_format)
            return _add_size(EncodedItem(shape), size_bytes, item)
        medium = opened.path or limited(item, opened)
        file = file if opened.path else cast("BinaryIO", medium)
        declared = item.declared or ("audio" if sound else None)
        return _add_size(_stream(kind, medium, file, declared), size_bytes, item)


def _kind(head: bytes, item: Item) -> tuple[Kind, bool]:
    """Return the kind by content, else by request or name, and whether it has a signature."""
    kind = sniff(head)
    if item.declared == "video" and (head.startswith(ANIMATED) or APNG in head):
        return "container", True
    # Many TGA files start like a cursor.
    if kind not in ("unknown", "text") and not head.startswith(CURSOR):
        return kind, True
    if item.declared and (kind != "text" or item.declared != "video"):
        return _BY_DECLARATION[item.declared], False
    return KIND_OF_EXTENSION.get(extension_of(item.path), kind), False


def _add_size(file: EncodedItem, size_bytes: int, item: Item) -> EncodedItem:
    mib = -(-size_bytes // MIB) or 1
    # A server fetches such URLs itself, within a size limit.
    return replace(file, encoding=replace(file.encoding, file_mib=mib, fetched=is_http(item.path)))


def limited(item: Item, opened: Opened, *, whole: bool = False) -> bounded.LimitedFile:
    """Return the opened item at its start, with the limits of a probe or of a `whole` decoding."""
    opened.file.seek(0)
    return bounded.LimitedFile(
        opened.file,
        opened.size_bytes,
        what="file",
        most_bytes=bounded.MAX_DECODED_BYTES if whole else bounded.MAX_PROBED_BYTES,
        most_reads=bounded.MAX_DECODING_READS if whole else bounded.MAX_READS,
        most_s=math.inf if whole else bounded.MAX_PROBED_S,
        name=os.path.basename(item.path.partition(MEMBER_MARK)[0]),
    )


def _stream(
    kind: Kind, medium: bounded.Medium, file: BinaryIO, declared: Modality | None
) -> EncodedItem:
    try:
        if kind in ("container", "audio"):
            # These imports are slow. A missing library must not be cached as damage of the file.
            try:
                import soundfile  # noqa: F401
            except OSError as error:
                raise ImportError(str(error)) from error
        if kind == "container":
            from mmcalib.media.video import container_shape

            return container_shape(medium, file, declared)
        if kind == "audio":
            from mmcalib.media.audio import audio_shape

            return audio_shape(medium, file)
        if kind == "frames":
            from mmcalib.media.video import frames_shape

            return frames_shape(file)
    except ImportError as error:
        raise UsageError(
            one_line(f"cannot read video and audio: {error}"),
            hint="pip install --force-reinstall av soundfile",
        ) from error
    if kind == "empty":
        raise Unreadable("empty file")
    raise NotMedia(f"{_NOT_MEDIA} (text)" if kind == "text" else _NOT_MEDIA)


def examine_whole(item: Item, *, sound: bool = False) -> EncodedItem | Skipped:
    """Call `examine`, and check that the file is complete, which may need more than a header.
    Decodes an image only if it seems truncated and is small.
    """
    seen = examine(item, sound=sound)
    if isinstance(seen, Skipped) or seen.encoding.given:
        return seen
    try:
        with open_item(item) as opened:
            if isinstance(seen.shape, ImageShape):
                short = is_truncated(opened.file, opened.size_bytes)
                size = seen.shape
                if short is not False and size.width_px * size.height_px <= _SMALL_PX:
                    return _load(item, opened.file, seen)
            elif isinstance(seen.shape, VideoShape):
                short = is_video_truncated(opened.file)
            else:
                from mmcalib.media.audio import is_audio_truncated

                medium = opened.path or limited(item, opened)
                short = is_audio_truncated(medium, seen, opened.file)
    except media_errors():
        return seen
    return replace(seen, encoding=replace(seen.encoding, fault="cut_short")) if short else seen


def _load(item: Item, file: BinaryIO, seen: EncodedItem) -> EncodedItem | Skipped:
    """Return `seen` if Pillow decodes the image, as vLLM would."""
    try:
        file.seek(0)
        load_picture(file)
    except media_errors() as error:
        return Skipped(item.path, error_reason(error))
    return seen
