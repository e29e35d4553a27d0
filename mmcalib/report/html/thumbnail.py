"""Make a small picture of an item, as a data URI. Runs in a process with a memory limit."""

from __future__ import annotations

import base64
import io
from typing import cast

from PIL import Image, ImageOps

from mmcalib.domain.items import Item
from mmcalib.domain.model import MAX_PIXELS
from mmcalib.errors import UsageError
from mmcalib.media.bounded import limit_reads
from mmcalib.media.container import open_container
from mmcalib.media.failure import Unreadable, media_errors, reading_by_pillow
from mmcalib.media.image import open_image
from mmcalib.media.probe import limited
from mmcalib.media.video import video_stream
from mmcalib.storage.access import open_item
from mmcalib.storage.location import Opened

_SIDE_PX = 240
_QUALITY = 72


def thumbnail(item: Item) -> str:
    """Return a JPEG of at most 240 px a side (a video's first frame); empty if there is none."""
    try:
        with open_item(item) as opened, reading_by_pillow():
            picture = _plain(_image(opened) if item.declared == "image" else _frame(item, opened))
            picture.thumbnail((_SIDE_PX, _SIDE_PX))
            if "A" in picture.getbands():
                white = Image.new("RGBA", picture.size, "white")
                white.alpha_composite(picture.convert("RGBA"))
                picture = white
            page = io.BytesIO()
            picture.convert("RGB").save(page, "JPEG", quality=_QUALITY)
            return "data:image/jpeg;base64," + base64.b64encode(page.getvalue()).decode()
    except UsageError:
        return ""
    except media_errors():
        return ""


def _image(opened: Opened) -> Image.Image:
    image = open_image(limit_reads(opened.file, opened.size_bytes))
    if image.width * image.height > MAX_PIXELS:
        raise Unreadable("too large for a thumbnail")
    # A JPEG can be decoded at an eighth of its size.
    image.draft("RGB", (_SIDE_PX * 2, _SIDE_PX * 2))
    image.load()
    return ImageOps.exif_transpose(image)


def _frame(item: Item, opened: Opened) -> Image.Image:
    with open_container(opened.path or limited(item, opened)) as container:
        stream = video_stream(container)
        if stream is None or stream.codec_context.width * stream.codec_context.height > MAX_PIXELS:
            raise Unreadable("no stream for a thumbnail")
        frame = next(container.decode(stream), None)
        if frame is None:
            raise Unreadable("no frame for a thumbnail")
        picture = cast("Image.Image", frame.to_image())  # type: ignore[no-untyped-call]
        return picture.rotate(frame.rotation, expand=True)


def _plain(picture: Image.Image) -> Image.Image:
    """Convert to a mode that Pillow can resize."""
    if picture.mode.startswith("I"):
        # Sixteen bits of grey.
        return picture.convert("I").point(lambda grey: grey * (1 / 256)).convert("L")
    if "transparency" in picture.info:
        return picture.convert("RGBA")
    return picture if picture.mode in ("L", "LA", "RGB", "RGBA") else picture.convert("RGB")
