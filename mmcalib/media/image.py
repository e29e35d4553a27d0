"""The shape of images from header and EXIF, and checks for truncation."""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import BinaryIO, cast

from PIL import ExifTags, Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError

from mmcalib.domain.model import MAX_PIXELS
from mmcalib.domain.shapes import ImageShape
from mmcalib.media.bounded import read_at
from mmcalib.media.failure import Unreadable, media_errors, reading_by_pillow
from mmcalib.media.headers import boxes

# Orientations 5 to 8 of EXIF 2.32, tag 0x0112, swap width and height.
_TAG = int(ExifTags.Base.Orientation)
_SIDEWAYS = (5, 6, 7, 8)

# Keys of Pillow's metadata, other than EXIF, that may contain an orientation.
_ELSEWHERE = ("Raw profile type exif", "xmp", "XML:com.adobe.xmp")

# An eXIf chunk after the pixels is this close to the end of a PNG.
_PNG_TAIL_BYTES = 16 * 1024

# Length, kind and checksum; IEND has nothing else.
_CHUNK_BYTES = 12


def turned_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height as vLLM turns an image in memory: by EXIF, as one in a file."""
    with ignore_warnings():
        # Pillow's TIFF plugin turns the size itself.
        turned = image.format != "TIFF" and is_sideways(image, io.BytesIO())
    return (image.height, image.width) if turned else image.size


def is_sideways(image: Image.Image, file: BinaryIO) -> bool:
    """True if EXIF swaps width and height; `image` was opened from `file`."""
    try:
        with reading_by_pillow():
            return _orientation(image, file) in _SIDEWAYS
    except media_errors():
        # vLLM's `normalize_image` does not turn an image with damaged EXIF.
        return False


def _orientation(image: Image.Image, file: BinaryIO) -> object:
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        value = image.tag_v2.get(_TAG, 1)
        # Avoid `getexif`, which would parse the tags a third time.
        return value if isinstance(value, int) and "xmp" not in image.info else _read_exif(image)
    if "exif" not in image.info and image.info.keys().isdisjoint(_ELSEWHERE):
        return _read_trailing_exif(file) if image.format == "PNG" else 1
    return _read_exif(image)


def _read_exif(image: Image.Image) -> object:
    # PngImageFile.getexif decodes all pixels in search of a later chunk.
    return (Image.Image.getexif(image) if image.format == "PNG" else image.getexif()).get(_TAG)


def _read_trailing_exif(file: BinaryIO) -> object:
    """Return the orientation in a PNG's last EXIF chunk; 1 without one."""
    size_bytes = file.seek(0, os.SEEK_END)
    start = max(0, size_bytes - _PNG_TAIL_BYTES)
    tail = read_at(file, start, size_bytes - start)
    at = tail.rfind(b"eXIf")
    if at < 0:
        return 1
    exif = Image.Exif()
    exif.load(b"Exif\0\0" + tail[at + 4 :][: int.from_bytes(tail[max(0, at - 4) : at])])
    return exif.get(_TAG)


# Both in `vllm.multimodal.image.ALLOWED_IMAGE_FORMATS` (0.32) and in `sniff`, in Pillow's order.
_FORMATS = (
    *("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "AVIF", "JPEG2000", "ICO", "CUR", "PPM"),
    *("PSD", "DDS", "QOI", "ICNS", "SGI", "SUN", "PCX"),
)

# The rest of vLLM's list: formats without a signature, or too rare to search for.
_MORE_FORMATS = (
    *("BLP", "DCX", "DIB", "FITS", "FLI", "FTEX", "GBR", "IM", "IMT", "IPTC", "MCIDAS", "MSP"),
    *("PCD", "PIXAR", "SPIDER", "TGA", "XBM", "XPM", "XVTHUMB"),
)

HEIC = "vLLM does not open HEIC"
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
TOO_LARGE = f"image exceeds Pillow's limit of {MAX_PIXELS:,} pixels, which vLLM uses too"

# The filter that `warnings.simplefilter("ignore")` puts first.
_IGNORE_ALL = ("ignore", None, Warning, None, 0)


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings of large images and odd metadata, which do not change the size.

    `catch_warnings` is not for threads: the last one to leave may restore the filter of another.
    """
    filters = cast("list[object]", warnings.filters)
    filters.insert(0, _IGNORE_ALL)
    try:
        yield
    finally:
        with suppress(ValueError):  # another thread has reset them
            filters.remove(_IGNORE_ALL)


def open_image(file: BinaryIO, *, any_format: bool = False) -> ImageFile.ImageFile:
    """Open without decoding, in the formats of `sniff` or, if `any_format`, in all of vLLM's."""
    try:
        with reading_by_pillow():
            return Image.open(file, formats=_FORMATS + _MORE_FORMATS if any_format else _FORMATS)
    except UnidentifiedImageError as error:
        head = read_at(file, 0, 12)
        if head[4:8] == b"ftyp" and head[8:] in _HEIC_BRANDS:
            raise Unreadable(HEIC) from error
        raise Unreadable("image header is damaged, or vLLM does not open the format") from error
    except Image.DecompressionBombError as error:
        raise Unreadable(TOO_LARGE) from error


def load_picture(file: BinaryIO) -> None:
    """Decode the first frame as vLLM does. Raises as `open_image` does."""
    with ignore_warnings(), reading_by_pillow():
        image: Image.Image = open_image(file, any_format=True)
        # If this fails, loading may still work, as for a truncated JPEG 2000 (`normalize_image` in
        # vllm/multimodal/image.py:76, 0.32).
        with suppress(Exception):
            image = ImageOps.exif_transpose(image)
        image.load()


def image_shape(file: BinaryIO, *, any_format: bool = False) -> ImageShape:
    """Return the first frame's size, turned by EXIF. Raises as `open_image` does."""
    with ignore_warnings():
        return _shape(open_image(file, any_format=any_format), file)


def _shape(image: ImageFile.ImageFile, file: BinaryIO) -> ImageShape:
    width_px, height_px = image.size
    # Pillow's TIFF plugin (but no other) reports the size rotated.
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        tags = image.tag_v2
        width_px, height_px = tags[ExifTags.Base.ImageWidth], tags[ExifTags.Base.ImageLength]
        if not isinstance(width_px, int) or not isinstance(height_px, int):
            raise Unreadable("damaged: width or height is not a number")
    if width_px < 1 or height_px < 1:
        raise Unreadable(f"image of {width_px}×{height_px} pixels")
    if is_sideways(image, file):
        width_px, height_px = height_px, width_px
    return ImageShape(width_px, height_px)


# A 0xFF in a JPEG's pixels that is not escaped, padding or a restart is a marker.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_END, _JPEG_SCAN, _JPEG_BARE = 0xD9, 0xDA, (0x01, *range(0xD0, 0xD9))
# Limit of chunks and segments; a file with more is not found to be whole.
_MOST_PARTS = 1 << 18
# Bytes that deflate makes of one at most (RFC 1951), and channels by PNG's color type.
_DEFLATE_RATIO, _PNG_CHANNELS = 1032, {2: 3, 4: 2, 6: 4}
# TIFF tags with the offsets and sizes of strips and of tiles.
_PARTS = ((273, 279), (324, 325))


def is_truncated(file: BinaryIO, size_bytes: int) -> bool | None:
    """True if, by the format's structure, the file ends before its first picture does; None if only
    decoding can tell. Raises as `open_image` does.
    """
    head = read_at(file, 0, 12)
    if head.startswith(b"\xff\xd8"):
        return not _jpeg_ends(read_at(file, 0, size_bytes))
    if head.startswith(b"\x89PNG"):
        return not _png_ends(file, size_bytes)
    if head.startswith(b"GIF8"):
        return None if read_at(file, size_bytes - 1, 1) == b";" else True
    if head.startswith(b"RIFF"):
        return 8 + int.from_bytes(head[4:8], "little") > size_bytes
    if head.startswith(b"BM"):
        return int.from_bytes(head[2:6], "little") > size_bytes
    if head[4:8] in (b"ftyp", b"jP  "):
        return all(end != size_bytes for *_, end in boxes(file, 0, size_bytes))
    file.seek(0)
    with ignore_warnings():
        image = open_image(file, any_format=True)
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        parts = (zip(*(image.tag_v2.get(tag, ()) for tag in pair), strict=False) for pair in _PARTS)
        return any(at + size > size_bytes for at, size in chain(*parts) if isinstance(at, int))
    if image.format == "PPM" and image.tile and image.tile[0].codec_name == "raw":
        _, _, at, args = image.tile[0]
        bits = 1 if image.mode == "1" else 16 if "16" in str(args) else 8 * len(image.getbands())
        return at + image.height * -(-image.width * bits // 8) > size_bytes
    return None


def _jpeg_ends(data: bytes) -> bool:
    """True if an end follows a scan, both outside segments, which may contain a preview's."""
    at, scanned = 2, False
    for _ in range(_MOST_PARTS):
        if (match := _MARKER.search(data, at)) is None:
            break
        marker, at = data[match.end() - 1], match.end()
        if marker == _JPEG_END:
            return scanned
        scanned |= marker == _JPEG_SCAN
        if marker not in _JPEG_BARE:
            at += max(2, int.from_bytes(data[at : at + 2]))
    return False


def _png_ends(file: BinaryIO, size_bytes: int) -> bool:
    """True if the last pixel chunk, the shorter one, is complete; Pillow needs nothing after it."""
    at, pixels, ended = 8, list[int](), False
    for _ in range(_MOST_PARTS):
        header = read_at(file, at, 8)
        if len(header) < 8:
            break
        size = int.from_bytes(header[:4])
        at += size + _CHUNK_BYTES
        if ended := header[4:] == b"IEND":
            break
        if at > size_bytes:
            return False
        pixels += [size] if header[4:] == b"IDAT" else []
    width, height, depth, color = struct.unpack(">IIBB", read_at(file, 16, 10))
    bits = width * height * depth * _PNG_CHANNELS.get(color, 1)
    whole = ended or len(pixels) == 1 or pixels[-1:] < pixels[:1]
    return whole and sum(pixels) * _DEFLATE_RATIO * 8 >= bits
