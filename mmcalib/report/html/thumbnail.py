"""Small pictures of an item, as data URIs; an item that cannot be read has none. For a process that
has a bound.
"""

from __future__ import annotations

import base64
import io
import itertools
from typing import cast

from PIL import Image, ImageOps, ImageStat

from mmcalib.domain.items import Item
from mmcalib.domain.server import MAX_PIXELS
from mmcalib.errors import UsageError
from mmcalib.locations.opening import Opened, open_item
from mmcalib.media.bounded import bounded
from mmcalib.media.container import open_container
from mmcalib.media.failure import Unreadable, failures, reading_by_pillow
from mmcalib.media.image import open_image
from mmcalib.media.probe import medium_of
from mmcalib.media.video import video_stream

_SIDE_PX = 240
_QUALITY = 72
# A detail is to be read, and is looked for at so many places across and down.
_FINE_QUALITY = 85
_PLACES = 5


def thumbnail(item: Item) -> str:
    """A JPEG of at most 240 pixels a side: the image, or the first frame of the video, which the
    item declares to be one. Empty for audio and for whatever cannot be read.
    """
    try:
        with open_item(item) as opened, reading_by_pillow():
            picture = _image(opened) if item.declared == "image" else _frame(item, opened)
            return _data_uri(picture) if picture is not None else ""
    except UsageError:
        return ""
    except failures():
        return ""


def detail(item: Item, width: str, height: str) -> str:
    """240 by 240 pixels of the image, where there is most to see, and the same part when the whole
    is so many pixels wide and high, enlarged again: two JPEGs, a space between. Empty for whatever
    cannot be read, and where the image is smaller.
    """
    try:
        with open_item(item) as opened, reading_by_pillow():
            image = _on_white(_plain(_image(opened, whole=True))).convert("RGB")
    except UsageError:
        return ""
    except failures():
        return ""
    if min(image.size) < _SIDE_PX:
        return ""
    left, top = _busiest(image)
    box = (left, top, left + _SIDE_PX, top + _SIDE_PX)
    across, down = int(width), int(height)
    resized = image.resize((across, down), Image.Resampling.BICUBIC)
    x, y = across / image.width, down / image.height
    same = (box[0] * x, box[1] * y, box[2] * x, box[3] * y)
    after = resized.resize((_SIDE_PX, _SIDE_PX), Image.Resampling.BICUBIC, box=same)
    return " ".join(_jpeg(one, _FINE_QUALITY) for one in (image.crop(box), after))


def _busiest(image: Image.Image) -> tuple[int, int]:
    """Left and top of the square whose greys differ most."""
    grey = image.convert("L")
    lefts, tops = (
        [round(n * (side - _SIDE_PX) / (_PLACES - 1)) for n in range(_PLACES)]
        for side in image.size
    )

    def spread(place: tuple[int, int]) -> float:
        left, top = place
        square = grey.crop((left, top, left + _SIDE_PX, top + _SIDE_PX))
        return ImageStat.Stat(square).stddev[0]

    return max(itertools.product(lefts, tops), key=spread)


def _image(opened: Opened, *, whole: bool = False) -> Image.Image:
    image = open_image(bounded(opened.file, opened.size_bytes))
    if image.width * image.height > MAX_PIXELS:
        raise Unreadable("too large for a thumbnail")
    if not whole:
        # A JPEG can be decoded at an eighth of its size.
        image.draft("RGB", (_SIDE_PX * 2, _SIDE_PX * 2))
    image.load()
    return ImageOps.exif_transpose(image)


def _frame(item: Item, opened: Opened) -> Image.Image | None:
    with open_container(opened.path or medium_of(item, opened)) as container:
        stream = video_stream(container)
        if stream is None or stream.codec_context.width * stream.codec_context.height > MAX_PIXELS:
            return None
        frame = next(container.decode(stream), None)
        if frame is None:
            return None
        picture = cast("Image.Image", frame.to_image())  # type: ignore[no-untyped-call]
        return picture.rotate(frame.rotation, expand=True)


def _data_uri(picture: Image.Image) -> str:
    picture = _plain(picture)
    picture.thumbnail((_SIDE_PX, _SIDE_PX))
    return _jpeg(_on_white(picture).convert("RGB"), _QUALITY)


def _on_white(picture: Image.Image) -> Image.Image:
    if "A" not in picture.getbands():
        return picture
    seen = picture.convert("RGBA")
    white = Image.new("RGBA", seen.size, "white")
    white.alpha_composite(seen)
    return white


def _jpeg(picture: Image.Image, quality: int) -> str:
    page = io.BytesIO()
    picture.save(page, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(page.getvalue()).decode()


def _plain(picture: Image.Image) -> Image.Image:
    """In a mode that Pillow can shrink and JPEG can hold."""
    if picture.mode.startswith("I"):
        # Sixteen bits of grey.
        return picture.convert("I").point(lambda grey: grey * (1 / 256)).convert("L")
    if "transparency" in picture.info:
        return picture.convert("RGBA")
    return picture if picture.mode in ("L", "LA", "RGB", "RGBA") else picture.convert("RGB")
