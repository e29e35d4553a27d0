"""One medium as a program holds it: what it is, without decoding it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import unquote, urlsplit

from mmcalib.corpus.urls import REMOTE, Unresolved, decode_data_url, is_inline, remote_url
from mmcalib.corpus.urls import sent_frames as frames_of
from mmcalib.domain.encoding import Encoded, Encoding
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape, flaw
from mmcalib.locations.domains import is_allowed
from mmcalib.locations.location import Location
from mmcalib.wording import one_line
from mmcalib.workflows.gate.arrays import is_array, is_sound, layout_of

if TYPE_CHECKING:
    from PIL.Image import Image

TAKEN = (
    "a path, a URL, bytes, a binary file, a PIL.Image, an array of numpy or torch (a picture of "
    "height × width, channels in front or behind; frames of the same, their number first), sound "
    "as (array, rate in Hz), a row of a dataset, a chat request, or a shape"
)
# A place that no file has: where its bytes stand does not matter.
NOWHERE = "memory://item"
_FRAMES_PER_S = 1.0
_MOST_KEYS = 8
_FILE = "file://"
# Where `datasets` keeps the file from which a decoder reads.
_DECODES = "_hf_encoded"


def is_cell(item: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a medium as `datasets` writes one: {bytes, path} or {array, sampling_rate}."""
    if not isinstance(item, Mapping):
        return False
    keys = set(item)
    encoded = bool(keys) and keys <= {"bytes", "path"} and any(item.values())
    return encoded or {"array", "sampling_rate"} <= keys <= {"array", "sampling_rate", "path"}


def is_picture(item: Any) -> TypeGuard[Image]:
    from PIL import Image

    return isinstance(item, Image.Image)


def presented(item: Any) -> Encoded | Skipped:
    """What it is; of what is elsewhere nothing, unless its host is allowed. Raises TypeError for
    what is no medium.
    """
    found = _presented(item)
    if isinstance(found, Encoded) and (why := flaw(found.shape)):
        return Skipped(NOWHERE, one_line(why))
    return found


def _presented(item: Any) -> Encoded | Skipped:
    if item is None:
        return Skipped(NOWHERE, "no image, video or audio")
    if isinstance(item, Encoded):
        return item
    if isinstance(item, ImageShape | VideoShape | AudioShape):
        return Encoded(item)
    if isinstance(item, str | os.PathLike):
        named = item_named(item)
        return named if isinstance(named, Skipped) else _examined(named)
    if isinstance(item, bytes | bytearray | memoryview):
        return _bytes(bytes(item))
    if isinstance(item, Mapping) and is_cell(item):
        return _cell(item)
    if hasattr(item, _DECODES):
        return presented(getattr(item, _DECODES))
    if hasattr(item, "read") and (data := read_whole(item)) is not None:
        return _bytes(data)
    if is_picture(item):
        return Encoded(ImageShape(*item.size))
    if isinstance(item, tuple) and len(item) == 2 and is_array(item[0]):
        return _sound(*item)
    if is_array(item):
        return _pixels(item)
    raise TypeError(f"this is {what(item)}; mmcalib takes {TAKEN}")


def read_whole(file: Any) -> bytes | None:
    """All that a binary file has, which stands afterwards where it stood; None for one of text."""
    try:
        start = file.tell()
        file.seek(start)
    except (AttributeError, OSError, ValueError):
        start = None
    data = file.read()
    if start is not None:
        file.seek(start)
    return data if isinstance(data, bytes) else None


def what(item: Any) -> str:
    """The type of it, as a message names it."""
    kind = type(item)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(item, Mapping):
        keys = ", ".join(map(str, list(item)[:_MOST_KEYS])) or "nothing"
        return f"{name} of {keys}, none of which is a medium"
    return f"{name} of shape {tuple(item.shape)}" if is_array(item) else name


def item_named(name: str | os.PathLike[str]) -> Item | Skipped:
    """A path, or a URL unless there is a file of that name."""
    if not isinstance(name, str) or os.path.lexists(name):
        return Item(os.path.abspath(os.fsdecode(name)))
    if name.lower().startswith(_FILE):
        return Item(os.path.abspath(unquote(urlsplit(name).path, errors="surrogateescape")))
    try:
        if is_inline(name):
            return _in_memory(frames_of(name) or decode_data_url(name)[0])
        remote = remote_url(name)
    except Unresolved as error:
        return Skipped(NOWHERE, str(error))
    location = Location.of(name)
    if location.is_file:
        return Item(os.path.abspath(name))
    if remote is None:
        return Skipped(name, "URL of a scheme that is not read")
    return Item(remote) if is_allowed(remote) else Skipped(name, REMOTE)


def _cell(cell: Mapping[str, Any]) -> Encoded | Skipped:
    if "array" in cell:
        return _sound(cell["array"], cell["sampling_rate"])
    data = cell.get("bytes")
    if data is None:
        return presented(str(cell["path"]))
    return _bytes(bytes(data))


def _examined(item: Item) -> Encoded | Skipped:
    from mmcalib.media.ending import examine_whole

    return examine_whole(item)


def _bytes(data: bytes) -> Encoded | Skipped:
    return _examined(_in_memory(data))


def _in_memory(data: bytes) -> Item:
    return Item(NOWHERE, held=ByteSource("", len(data), data=data))


def _pixels(array: Any) -> Encoded:
    found = layout_of(array)
    if found is None:
        raise TypeError(f"this is {what(array)}; mmcalib takes {TAKEN}")
    if found.frames is None:
        return Encoded(ImageShape(found.width_px, found.height_px))
    lasts_s = found.frames / _FRAMES_PER_S
    clip = VideoShape(found.frames, _FRAMES_PER_S, lasts_s, found.width_px, found.height_px)
    return Encoded(clip, Encoding(sent_frames=True))


def _sound(array: Any, rate_hz: Any) -> Encoded:
    if not is_array(array):
        import numpy as np

        array = np.asarray(array)
    if not is_sound(array, rate_hz):
        raise TypeError(f"this is ({what(array)}, {rate_hz!r}); mmcalib takes {TAKEN}")
    samples, channels = max(array.shape), min(array.shape) if array.ndim == 2 else 1
    return Encoded(AudioShape(samples, int(rate_hz)), Encoding(channels=channels))
