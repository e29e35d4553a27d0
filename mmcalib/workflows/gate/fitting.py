"""An item in the largest size that fits, as the program that asks holds it."""

from __future__ import annotations

import io
import os
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmcalib.corpus.content_parts import PART_OF
from mmcalib.corpus.request_line import RequestLines
from mmcalib.derive.gate import Gate
from mmcalib.domain.encoding import Encoded
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.locations.opening import open_item
from mmcalib.texts.counting import Counting
from mmcalib.workflows.gate.arrays import as_numpy, is_array, layout_of, like
from mmcalib.workflows.gate.dataset_row import dataset_row, replaced
from mmcalib.workflows.gate.held import is_cell, is_picture, item_named, presented, read_whole
from mmcalib.workflows.gate.presented import Root, admitted, admitted_file, request_lines

if TYPE_CHECKING:
    from PIL.Image import Image

# Formats that Pillow writes again as they were; a picture in any other becomes a PNG.
_WRITTEN = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")

_QUALITY = 95
_IMAGE = PART_OF["image"]


def fitted(
    gate: Gate,
    item: Any,
    root: Root = None,
    counting: Counting | None = None,
) -> Any:
    """The item itself where it fits; otherwise a smaller one of the same kind: bytes for bytes, an
    array for an array, a row or request with smaller media. A path or URL becomes a `PIL.Image`.

    Raises ValueError where no size fits, and as `admitted` does.
    """
    answer = admitted(gate, item, root, counting)
    if answer.fits:
        return item
    if isinstance(item, Mapping) and not is_cell(item):
        row = dataset_row(item)
        if row is None:
            made = _request(gate, item, root)
        else:
            made = item
            for one in row.media:
                smaller = _medium(gate, one.medium)
                if smaller is not one.medium:
                    whole = isinstance(one.medium, tuple) and is_array(_at(item, one.at))
                    made = replaced(made, one.at, smaller[0] if whole else smaller)
        answer = admitted(gate, made, root, counting)
        if not answer.fits:
            raise ValueError(f"no size of its media fits: {answer.reason}; {answer.remedy}")
        return made
    return _medium(gate, item)


def _request(gate: Gate, request: Mapping[str, Any], root: Root) -> Any:
    """With a `data:` URL for each picture that is too large."""
    if "body" in request:
        return {**request, "body": _request(gate, request["body"], root)}
    with request_lines(root) as reader:
        messages = [
            {**message, "content": [_part(gate, part, reader) for part in message["content"]]}
            if isinstance(message.get("content"), list)
            else message
            for message in request.get("messages", ())
        ]
    return {**request, "messages": messages} if messages else request


def _part(gate: Gate, part: Any, reader: RequestLines) -> Any:
    if not isinstance(part, Mapping) or part.get("type") != _IMAGE:
        return part
    from mmcalib.media.ending import examine_whole

    given = part[_IMAGE]
    url = given["url"] if isinstance(given, Mapping) else given
    item = reader.item((_IMAGE, url), "the request")
    file = examine_whole(item)
    answer = admitted_file(gate, file) if isinstance(file, Encoded) else None
    if answer is None or answer.fits or not isinstance(answer.largest, ImageShape):
        return part
    with open_item(item) as opened:
        data, kind = _encoded_as(opened.file.read(), answer.largest)
    made = f"data:image/{kind.lower()};base64,{b64encode(data).decode()}"
    return {**part, _IMAGE: {"url": made}}


def _at(row: Mapping[str, Any], at: tuple[Any, ...]) -> Any:
    found: Any = row
    for step in at:
        found = found[step]
    return found


def _medium(gate: Gate, item: Any) -> Any:
    file = presented(item)
    if isinstance(file, Skipped):
        raise ValueError(f"no size of it fits: {file.reason}")
    answer = admitted_file(gate, file)
    if answer.fits:
        return item
    if answer.largest is None:
        raise ValueError(f"no size of it fits: {answer.reason}")
    made = _smaller(item, answer.largest)
    if made is None:
        raise ValueError(f"not made smaller here: {answer.reason}; {answer.remedy}")
    return made


def _smaller(item: Any, to: Shape) -> Any:
    """None for a file of video or sound, which would have to be encoded anew."""
    if isinstance(item, ImageShape | VideoShape | AudioShape):
        return to
    if isinstance(item, Encoded):
        return Encoded(to, item.encoding)
    if is_array(item):
        return like(item, _array(as_numpy(item), item, to))
    if isinstance(item, tuple) and isinstance(to, AudioShape):
        return _cut(item[0], to), item[1]
    if isinstance(item, Mapping) and "array" in item and isinstance(to, AudioShape):
        return {**item, "array": _cut(item["array"], to)}
    if not isinstance(to, ImageShape):
        return None
    if is_picture(item):
        return _resized(item, to)
    if isinstance(item, bytes | bytearray | memoryview):
        return _encoded_again(bytes(item), to)
    if isinstance(item, Mapping):
        data = item.get("bytes")
        held = bytes(data) if data is not None else _read(str(item["path"]))
        return {**item, "bytes": _encoded_again(held, to)}
    if isinstance(item, str | os.PathLike):
        return _opened(_read(item), to)[0]
    data = read_whole(item)
    return None if data is None else io.BytesIO(_encoded_again(data, to))


def _read(name: str | os.PathLike[str]) -> bytes:
    """Of what was read before, so that nothing more need be allowed."""
    item = item_named(name)
    assert isinstance(item, Item)
    with open_item(item) as opened:
        return opened.file.read()


def _opened(data: bytes, to: ImageShape) -> tuple[Image, str]:
    """As a viewer shows it, in that size; and its format."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as picture:
        upright = ImageOps.exif_transpose(picture)
        return _resized(upright, to), picture.format or ""


def _resized(picture: Image, to: ImageShape) -> Image:
    return picture.resize((to.width_px, to.height_px))


def _encoded_again(data: bytes, to: ImageShape) -> bytes:
    return _encoded_as(data, to)[0]


def _encoded_as(data: bytes, to: ImageShape) -> tuple[bytes, str]:
    """And the format that it has then."""
    picture, kind = _opened(data, to)
    kind = kind if kind in _WRITTEN else "PNG"
    made = io.BytesIO()
    picture.save(made, kind, quality=_QUALITY)
    return made.getvalue(), kind


def _cut(array: Any, to: AudioShape) -> Any:
    if not is_array(array):
        return array[: to.num_samples]
    longest = max(range(array.ndim), key=lambda axis: array.shape[axis])
    return array[: to.num_samples] if longest == 0 else array[:, : to.num_samples]


def _array(pixels: Any, given: Any, to: Shape) -> Any:
    """A picture, or the first frames of a clip, each resized by itself."""
    import numpy as np

    layout = layout_of(given)
    assert layout is not None
    assert isinstance(to, ImageShape | VideoShape)
    size = ImageShape(to.width_px, to.height_px)
    if layout.frames is None:
        return _picture(pixels, layout.channels_axis, size)
    frames = pixels[: to.num_frames] if isinstance(to, VideoShape) else pixels
    if (layout.width_px, layout.height_px) == (to.width_px, to.height_px):
        return frames
    return np.stack([_picture(frame, layout.channels_axis, size) for frame in frames])


def _picture(pixels: Any, channels_axis: int | None, to: ImageShape) -> Any:
    """Channel by channel, so that any number type will do."""
    import numpy as np
    from PIL import Image

    def plane(values: Any) -> Any:
        small = Image.fromarray(np.ascontiguousarray(values, dtype=np.float32)).resize(
            (to.width_px, to.height_px)
        )
        return np.asarray(small)

    if channels_axis is None:
        made = plane(pixels)
    else:
        planes = [plane(values) for values in np.moveaxis(pixels, channels_axis, 0)]
        made = np.stack(planes, axis=channels_axis)
    if np.issubdtype(pixels.dtype, np.integer):
        bounds = np.iinfo(pixels.dtype)
        made = np.clip(np.rint(made), bounds.min, bounds.max)
    return made.astype(pixels.dtype)
