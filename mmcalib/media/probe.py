"""The shape of one item from its header. A failure is a value, not an exception."""

from __future__ import annotations

import math
import os
import stat
from dataclasses import replace
from typing import BinaryIO, cast

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import PLAIN, AudioShape, Encoded, Modality, Shape, VideoShape, mib
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
)
from mmcalib.media.failure import NotMedia, Unreadable, failures, reason
from mmcalib.media.image import image_shape, is_cut_short, load_picture
from mmcalib.media.sniff import ANIMATED, CURSOR, HEAD_BYTES, UNMARKED, Kind, ending_of, sniff
from mmcalib.storage.location import BEHIND, NOT_REGULAR, Location, Opened, open_item
from mmcalib.text import MIB, one_line

# Pixels of a picture that takes 100 MB to decode.
_SMALL_PX = 1 << 25
_NOT_MEDIA = "not an image, video or audio file"

# What a server fetches itself, within its bound.
_FETCHED = ("http://", "https://")

# Files of which only what a request declares them to be can tell what they are.
_BY_DECLARATION: dict[Modality, Kind] = {"image": "image", "video": "container", "audio": "audio"}


def examine(item: Item, *, sound: bool = False) -> Encoded | Skipped:
    """The item's shape by content, whatever its name says, and how it is held; `Skipped` where
    there is none, or a request declared another modality. With `sound` a recording with pictures
    is the sound in it, unless a request says otherwise: so vLLM reads it for a model that takes
    no video. Reads headers only. Raises UsageError where what opens such items is missing.
    """
    try:
        seen = _look(item, sound)
    except failures() as error:
        return Skipped(item.path, reason(error), no_media=isinstance(error, NotMedia))
    if item.declared not in (None, seen.modality):
        return Skipped(item.path, f"declared {item.declared}, is {seen.modality}")
    return seen


def examine_sound(item: Item) -> Encoded | Skipped:
    """As `examine` for a model of sound."""
    return examine(item, sound=True)


def probe(item: Item) -> Shape | Skipped:
    """The same, without how it is held."""
    seen = examine(item)
    return seen if isinstance(seen, Skipped) else seen.shape


def is_plain_file(item: Item) -> bool:
    """Whether C libraries can open it by its name."""
    return item.path[:1] == "/" or Location.of(item.path).is_file


def _look(item: Item, sound: bool) -> Encoded:
    # Opening a FIFO would wait for a writer.
    if is_plain_file(item) and not stat.S_ISREG(os.stat(item.path).st_mode):
        raise Unreadable(NOT_REGULAR)
    with open_item(item) as opened:
        kind, marked = _kind(opened.file.read(HEAD_BYTES), item)
        size_bytes, file = opened.size_bytes, bounded(opened.file, opened.size_bytes)
        if kind == "image":
            file.seek(0)
            return _image(file, size_bytes, item, marked)
        medium = opened.path or medium_of(item, opened)
        file = file if opened.path else cast("BinaryIO", medium)
        wanted = item.declared or ("audio" if sound else None)
        return _sized(_stream(kind, medium, file, wanted), size_bytes, item)


def _kind(head: bytes, item: Item) -> tuple[Kind, bool]:
    """By content, else as a request says or the name; and whether it has a mark."""
    kind = sniff(head)
    if item.declared == "video" and head.startswith(ANIMATED):
        return "container", True
    # Many a TGA begins like a cursor.
    if kind not in ("unknown", "text") and not head.startswith(CURSOR):
        return kind, True
    if item.declared and (kind != "text" or item.declared != "video"):
        return _BY_DECLARATION[item.declared], False
    return UNMARKED.get(ending_of(item.path.partition(BEHIND)[0]), kind), False


def _image(file: BinaryIO, size_bytes: int, item: Item, marked: bool) -> Encoded:
    shape = image_shape(file, any_format=item.declared == "image" or not marked)
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
            import soundfile  # noqa: F401
        except (ImportError, OSError) as error:
            raise _without_libraries(error) from error
    try:
        if kind == "container":
            from mmcalib.media.video import container_shape

            return container_shape(medium, file, declared)
        if kind == "audio":
            from mmcalib.media.audio import audio_shape

            return audio_shape(medium)
        if kind == "frames":
            from mmcalib.media.video import frames_shape

            return frames_shape(file)
    except ImportError as error:
        raise _without_libraries(error) from error
    if kind == "empty":
        raise Unreadable("empty file")
    raise NotMedia(f"{_NOT_MEDIA} (text)" if kind == "text" else _NOT_MEDIA)


def _without_libraries(error: Exception) -> UsageError:
    return UsageError(
        one_line(f"video and sound cannot be read here: {error}"),
        hint="pip install --force-reinstall av soundfile",
    )


def examine_whole(item: Item, *, sound: bool = False) -> Encoded | Skipped:
    """As `examine`, and whether the end of a picture or a sound is there, which only more than its
    header says. A picture is decoded only where its end seems to be missing, and only a small one.
    """
    seen = examine(item, sound=sound)
    if isinstance(seen, Skipped) or isinstance(seen.shape, VideoShape):
        return seen
    try:
        with open_item(item) as opened:
            if isinstance(seen.shape, AudioShape):
                from mmcalib.media.audio import is_sound_cut_short

                where = item.path if is_plain_file(item) else medium_of(item, opened)
                short: bool | None = is_sound_cut_short(where, seen)
            else:
                short = is_cut_short(opened.file, opened.size_bytes)
                size = seen.shape
                if short is not False and size.width_px * size.height_px <= _SMALL_PX:
                    return _load(item, opened.file, seen)
    except failures():
        return seen
    return replace(seen, encoding=replace(seen.encoding, fault="cut_short")) if short else seen


def _load(item: Item, file: BinaryIO, seen: Encoded) -> Encoded | Skipped:
    """As it is where Pillow decodes it, as for vLLM."""
    try:
        file.seek(0)
        load_picture(file)
    except failures() as error:
        return Skipped(item.path, reason(error))
    return seen
