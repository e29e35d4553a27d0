"""The shape of an image from its header, by Pillow."""

from __future__ import annotations

import warnings
from typing import BinaryIO

from PIL import ExifTags, Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from mmcalib.domain.server import MAX_PIXELS
from mmcalib.domain.shapes import ImageShape
from mmcalib.media.failure import Unreadable, reading_by_pillow
from mmcalib.media.orientation import is_sideways

# What `vllm.multimodal.image.ALLOWED_IMAGE_FORMATS` (0.32) and `sniff` both know. Pillow tries them
# in this order.
_FORMATS = (
    *("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "AVIF", "JPEG2000", "ICO", "CUR", "PPM"),
    *("PSD", "DDS", "QOI", "ICNS", "SGI", "SUN", "PCX"),
)

# The rest of that list: without a mark in their first bytes, or too rare to look for.
_MORE_FORMATS = (
    *("BLP", "DCX", "DIB", "FITS", "FLI", "FTEX", "GBR", "IM", "IMT", "IPTC", "MCIDAS", "MSP"),
    *("PCD", "PIXAR", "SPIDER", "TGA", "XBM", "XPM", "XVTHUMB"),
)

TOO_LARGE = f"image of more than the {MAX_PIXELS:,} pixels that Pillow opens, for vLLM too"

# What `warnings.simplefilter("ignore")` puts first.
IGNORE_ALL = ("ignore", None, Warning, None, 0)


def open_image(file: BinaryIO, *, any_format: bool = False) -> ImageFile.ImageFile:
    """Open without decoding, in the formats that `sniff` knows, or `any_format` that vLLM opens.

    Raises `Unreadable` or one of `read_errors`.
    """
    try:
        with reading_by_pillow():
            return Image.open(file, formats=_FORMATS + _MORE_FORMATS if any_format else _FORMATS)
    except UnidentifiedImageError as error:
        raise Unreadable("image header damaged, or of a format that vLLM does not open") from error
    except Image.DecompressionBombError as error:
        raise Unreadable(TOO_LARGE) from error


def image_shape(file: BinaryIO, *, any_format: bool = False) -> ImageShape:
    """Width and height of the first frame, EXIF rotation applied, no pixel decoded.

    Raises `Unreadable` or one of `read_errors`.
    """
    # Pillow warns of large images and odd metadata; neither changes a header's size.
    if warnings.filters[:1] == [IGNORE_ALL]:  # suppressing them takes as long as reading a header
        return _shape(file, any_format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _shape(file, any_format)


def _shape(file: BinaryIO, any_format: bool) -> ImageShape:
    image = open_image(file, any_format=any_format)
    width_px, height_px = _stored_size(image)
    if width_px < 1 or height_px < 1:
        raise Unreadable(f"image of {width_px}×{height_px} pixels")
    if is_sideways(image, file):
        width_px, height_px = height_px, width_px
    return ImageShape(width_px, height_px)


def _stored_size(image: ImageFile.ImageFile) -> tuple[int, int]:
    """The size before rotation: Pillow's TIFF plugin (but no other) reports it rotated."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        tags = image.tag_v2
        sides = tags[ExifTags.Base.ImageWidth], tags[ExifTags.Base.ImageLength]
        if not all(isinstance(side, int) for side in sides):
            raise Unreadable("damaged: its width and height are no numbers")
        return sides
    return image.size
