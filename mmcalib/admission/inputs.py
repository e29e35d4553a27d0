"""Describe one medium of a program without decoding it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mmcalib.corpus import urls
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.domain.shapes import (
    AudioShape,
    EncodedItem,
    Encoding,
    ImageShape,
    VideoShape,
    invalid_reason,
)
from mmcalib.storage.location import Location, is_allowed
from mmcalib.text import one_line

ACCEPTED = (
    "a path, a URL, bytes, a binary file, a PIL.Image, audio as (array, rate in Hz), a chat "
    "request, or a shape"
)
# The path of media in memory; no file has it.
IN_MEMORY = "memory://item"
_MOST_KEYS = 8
_FILE = "file://"


def is_cell(item: Any) -> bool:
    """Return whether it is an encoded medium of the `datasets` library: {bytes, path}."""
    return isinstance(item, Mapping) and bool(item) and set(item) <= {"bytes", "path"}


def describe_item(item: Any, *, sound: bool = False) -> EncodedItem | Skipped:
    """Read an item's shape, `sound` as in `examine`; skip hosts not allowed. Raises TypeError."""
    medium = _find_medium(item)
    if isinstance(medium, Item):
        from mmcalib.media.probe import examine_whole

        medium = examine_whole(medium, sound=sound)
    if isinstance(medium, EncodedItem) and (why := invalid_reason(medium.shape)):
        return Skipped(IN_MEMORY, one_line(why))
    return medium


def _find_medium(item: Any) -> Item | EncodedItem | Skipped:
    if item is None:
        return Skipped(IN_MEMORY, "no image, video or audio")
    if isinstance(item, ImageShape | VideoShape | AudioShape):
        return EncodedItem(item)
    if isinstance(item, str | os.PathLike):
        return item_at(item)
    if isinstance(item, bytes | bytearray | memoryview):
        return _in_memory(bytes(item))
    if is_cell(item):
        return _find_medium(item.get("bytes") or item.get("path"))
    if hasattr(item, "read") and (data := _read_whole(item)) is not None:
        return _in_memory(data)
    from PIL import Image

    if isinstance(item, Image.Image):
        return EncodedItem(ImageShape(*item.size))
    if isinstance(item, tuple) and len(item) == 2 and (sound := _sound(*item)) is not None:
        return sound
    raise unsupported_type(item)


def unsupported_type(item: Any) -> TypeError:
    """Return the error for a type that `admits` does not take."""
    kind = type(item)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(item, Mapping):
        name += f" of {', '.join(map(str, list(item)[:_MOST_KEYS])) or 'nothing'}"
    return TypeError(f"cannot check {name}; mmcalib takes {ACCEPTED}")


def _read_whole(file: Any) -> bytes | None:
    """Read a binary file and restore its position; None for a text file."""
    try:
        start = file.tell()
        file.seek(start)
    except (AttributeError, OSError, ValueError):
        start = None
    data = file.read()
    if start is not None:
        file.seek(start)
    return data if isinstance(data, bytes) else None


def item_at(name: str | os.PathLike[str]) -> Item | Skipped:
    """Return the item of a path, or of a URL if no file has that name."""
    if not isinstance(name, str) or os.path.lexists(name):
        return Item(os.path.abspath(os.fsdecode(name)))
    try:
        if name.lower().startswith(_FILE):
            return Item(os.path.abspath(urls.file_url_path(name)))
        if urls.is_inline(name):
            return _in_memory(urls.frames_in_data_url(name) or urls.decode_data_url(name)[0])
        remote = urls.remote_url(name)
    except urls.Unresolved as error:
        return Skipped(IN_MEMORY, str(error))
    if Location.of(name).is_file:
        return Item(os.path.abspath(name))
    if remote is None:
        return Skipped(name, "URL with an unsupported scheme")
    return Item(remote) if is_allowed(remote) else Skipped(name, urls.REMOTE)


def _in_memory(data: bytes) -> Item:
    return Item(IN_MEMORY, byte_source=ByteSource("", len(data), data=data))


def _sound(array: Any, rate_hz: Any) -> EncodedItem | None:
    """Describe audio of one or two axes (channels, samples) at a whole rate in Hz, else None."""
    try:
        shape, whole = tuple(array.shape), 0 < rate_hz == int(rate_hz)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    if not whole or len(shape) not in (1, 2) or 0 in shape:
        return None
    channels = min(shape) if len(shape) == 2 else 1
    return EncodedItem(AudioShape(max(shape), int(rate_hz)), Encoding(channels=channels))
