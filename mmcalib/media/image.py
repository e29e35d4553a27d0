"""The shape of an image from its header, by Pillow."""

from __future__ import annotations

import warnings
from typing import BinaryIO

from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from mmcalib.census.shapes import ImageShape
from mmcalib.media.failure import READ_ERRORS, Unreadable

# vLLM refuses larger images and frames (VLLM_MAX_IMAGE_PIXELS in vllm/envs.py, 0.32), and so does
# Pillow: it is twice PIL.Image.MAX_IMAGE_PIXELS.
MAX_PIXELS = 178_956_970

# What `vllm.multimodal.image.ALLOWED_IMAGE_FORMATS` (0.32) and `sniff` both know.
_FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "ICO", "CUR", "PPM"),
    *("PSD", "DDS", "QOI", "ICNS", "SGI", "SUN"),
)

# Orientations 5 to 8 of EXIF 2.32, tag 0x0112, exchange width and height.
_SIDEWAYS = (5, 6, 7, 8)

# An eXIf chunk behind the pixels stands this near to the end of a PNG.
_PNG_TAIL_BYTES = 16 * 1024


def open_image(file: BinaryIO) -> Image.Image:
    """Open without decoding, in the formats that vLLM opens. Raises `Unreadable` or READ_ERRORS."""
    try:
        return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError as error:
        raise Unreadable("image header damaged, or of a format that vLLM does not open") from error
    except Image.DecompressionBombError as error:
        raise Unreadable(f"image of more than the {MAX_PIXELS:,} pixels that vLLM opens") from error


def image_shape(file: BinaryIO) -> ImageShape:
    """Width and height of the first frame, EXIF rotation applied, no pixel decoded.

    Raises `Unreadable` or one of `READ_ERRORS`.
    """
    with warnings.catch_warnings():
        # Pillow warns of large images and odd metadata; neither changes a header's size.
        warnings.simplefilter("ignore")
        image = open_image(file)
        width_px, height_px = _stored_size(image)
        if width_px < 1 or height_px < 1:
            raise Unreadable(f"image of {width_px}×{height_px} pixels")
        if _orientation(image, file) in _SIDEWAYS:
            width_px, height_px = height_px, width_px
    return ImageShape(width_px, height_px)


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """The size before rotation: Pillow's TIFF plugin (but no other) reports it rotated."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        tags = image.tag_v2
        return int(tags[ExifTags.Base.ImageWidth]), int(tags[ExifTags.Base.ImageLength])
    return image.size


def _orientation(image: Image.Image, file: BinaryIO) -> int:
    try:
        if image.format != "PNG":
            exif = image.getexif()
        elif _has_exif(image):
            # PngImageFile.getexif decodes all pixels in search of a later chunk.
            exif = Image.Image.getexif(image)
        else:
            exif = _late_exif(file)
        return int(exif.get(ExifTags.Base.Orientation) or 1)
    except READ_ERRORS:
        # vLLM's `normalize_image` leaves an image with damaged EXIF as it is stored.
        return 1


def _has_exif(image: Image.Image) -> bool:
    return not image.info.keys().isdisjoint(("exif", "Raw profile type exif", "xmp"))


def _late_exif(file: BinaryIO) -> Image.Exif:
    """What stands in a chunk behind the pixels; empty without one."""
    size_bytes = file.seek(0, 2)
    file.seek(max(0, size_bytes - _PNG_TAIL_BYTES))
    before, kind, after = file.read().rpartition(b"eXIf")
    exif = Image.Exif()
    if kind:
        exif.load(b"Exif\0\0" + after[: int.from_bytes(before[-4:])])
    return exif
