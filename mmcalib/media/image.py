"""Image shape from the header, EXIF, truncation."""

from __future__ import annotations

import os
import re
import struct
import warnings
from itertools import chain
from typing import Any, BinaryIO

from PIL import ExifTags, Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from mmcalib.domain.model import MAX_PIXELS
from mmcalib.domain.shapes import ImageShape
from mmcalib.media.bounded import read_at
from mmcalib.media.failure import Unreadable, failures, reading_by_pillow

# Orientations 5 to 8 of EXIF 2.32, tag 0x0112, exchange width and height.
_TAG = int(ExifTags.Base.Orientation)
_SIDEWAYS = (5, 6, 7, 8)

# Per byte order of a TIFF header: an offset, a number of entries, an entry.
_LAYOUTS = {
    b"II*\0": (struct.Struct("<L"), struct.Struct("<H"), struct.Struct("<HHLH2x")),
    b"MM\0*": (struct.Struct(">L"), struct.Struct(">H"), struct.Struct(">HHLH2x")),
}
_SHORT = 3

# Where Pillow keeps metadata that may name an orientation besides EXIF.
_ELSEWHERE = ("Raw profile type exif", "xmp", "XML:com.adobe.xmp")

# An eXIf chunk behind the pixels stands this near to the end of a PNG.
_PNG_TAIL_BYTES = 16 * 1024

# Length, kind and checksum; IEND has nothing else.
_CHUNK_BYTES = 12


def is_sideways(image: ImageFile.ImageFile, file: BinaryIO) -> bool:
    """Whether width and height exchange their places; `file` is what the image was opened from."""
    try:
        with reading_by_pillow():
            return _orientation(image, file) in _SIDEWAYS
    except failures():
        # vLLM's `normalize_image` leaves an image with damaged EXIF as it is stored.
        return False


def _orientation(image: ImageFile.ImageFile, file: BinaryIO) -> object:
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        value = image.tag_v2.get(_TAG, 1)
        # `getexif` would parse the tags a third time.
        return value if isinstance(value, int) and "xmp" not in image.info else _by_pillow(image)
    exif = image.info.get("exif")
    elsewhere = not image.info.keys().isdisjoint(_ELSEWHERE)
    if exif is None and not elsewhere:
        return _behind_the_pixels(image, file) if image.format == "PNG" else 1
    quick = _in_first_directory(exif) if isinstance(exif, bytes) else None
    if quick is None or (quick == 0 and elsewhere):
        return _by_pillow(image)
    return quick


def _by_pillow(image: Image.Image) -> object:
    # PngImageFile.getexif decodes all pixels in search of a later chunk.
    exif = Image.Image.getexif(image) if image.format == "PNG" else image.getexif()
    return exif.get(_TAG)


def _in_first_directory(exif: bytes) -> int | None:
    """The orientation in a block of EXIF that is as it should be, 0 where it has none.

    None leaves it to Pillow, which parses the whole block: that takes as long as opening the image.
    """
    start = 6 if exif.startswith(b"Exif\0\0") else 0
    layout = _LAYOUTS.get(exif[start : start + 4])
    if layout is None:
        return None
    offset, number, entry = layout
    try:
        (at,) = offset.unpack_from(exif, start + 4)
        (entries,) = number.unpack_from(exif, start + at)
        first = start + at + number.size
        directory = exif[first : first + entry.size * entries]
        for tag, kind, count, value in entry.iter_unpack(directory):
            if tag == _TAG:
                return int(value) if (kind, count) == (_SHORT, 1) else None
    except struct.error:
        return None
    return 0


def _behind_the_pixels(image: ImageFile.ImageFile, file: BinaryIO) -> object:
    """What a PNG's last chunk of EXIF says; 1 without one."""
    size_bytes = file.seek(0, os.SEEK_END)
    if image.tile and _ends_in_pixels(file, image.tile[0].offset - 8, size_bytes):
        return 1
    start = max(0, size_bytes - _PNG_TAIL_BYTES)
    tail = read_at(file, start, size_bytes - start)
    at = tail.rfind(b"eXIf")
    if at < 0:
        return 1
    exif = Image.Exif()
    exif.load(b"Exif\0\0" + tail[at + 4 :][: int.from_bytes(tail[max(0, at - 4) : at])])
    return exif.get(_TAG)


def _ends_in_pixels(file: BinaryIO, first: int, size_bytes: int) -> bool:
    """Whether a chunk of pixels is the last but IEND; the first of them begins at `first`.

    It is looked for where it is if all but the last are equally long: so encoders write them.
    """
    end = size_bytes - _CHUNK_BYTES
    step = int.from_bytes(read_at(file, first, 4)) + _CHUNK_BYTES
    last = first + (end - first - 1) // step * step
    header = read_at(file, last, 8)
    return header[4:] == b"IDAT" and last + int.from_bytes(header[:4]) + _CHUNK_BYTES == end


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

HEIC = "HEIC, which vLLM does not open"
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
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
        head = read_at(file, 0, 12)
        if head[4:8] == b"ftyp" and head[8:] in _HEIC_BRANDS:
            raise Unreadable(HEIC) from error
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
    width_px, height_px = image.size
    # Pillow's TIFF plugin (but no other) reports the size rotated.
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        tags = image.tag_v2
        width_px, height_px = tags[ExifTags.Base.ImageWidth], tags[ExifTags.Base.ImageLength]
        if not isinstance(width_px, int) or not isinstance(height_px, int):
            raise Unreadable("damaged: its width and height are no numbers")
    if width_px < 1 or height_px < 1:
        raise Unreadable(f"image of {width_px}×{height_px} pixels")
    if is_sideways(image, file):
        width_px, height_px = height_px, width_px
    return ImageShape(width_px, height_px)


# What follows a 0xFF among the pixels of a JPEG without being a marker: itself, padding, restarts.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_END, _JPEG_BARE = 0xD9, (0x01, *range(0xD0, 0xD9))
# Chunks, segments and boxes that are looked at; what has more is not said to be whole.
_MOST_PARTS = 1 << 18
# Where the parts of a TIFF begin, and their bytes: strips and tiles.
_PARTS = ((273, 279), (324, 325))


def is_cut_short(file: BinaryIO, size_bytes: int) -> bool:
    """Whether its first picture goes on behind the end of the file, by the structure of its format.

    Of JPEG, PNG, GIF, WebP, AVIF, JPEG 2000, TIFF, and bare pixels as in BMP, PPM and TGA. Raises
    `Unreadable` or one of `read_errors`.
    """
    head = read_at(file, 0, 12)
    if head.startswith(b"\xff\xd8"):
        return not _jpeg_ends(read_at(file, 0, size_bytes))
    if head.startswith(b"\x89PNG"):
        return not _png_ends(file, size_bytes)
    if head.startswith(b"GIF8"):
        return not _gif_ends(read_at(file, 0, size_bytes))
    if head.startswith(b"RIFF"):
        return 8 + int.from_bytes(head[4:8], "little") > size_bytes
    if head[4:8] in (b"ftyp", b"jP  "):
        return not _boxes_end(file, size_bytes)
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = open_image(file, any_format=True)
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        parts = (zip(*(image.tag_v2.get(tag, ()) for tag in pair), strict=False) for pair in _PARTS)
        ends = [at + size for at, size in chain(*parts) if isinstance(at, int)]
    else:
        ends = [_pixels_end(tile, image.size[0]) for tile in image.tile]
    return max(ends, default=0) > size_bytes


def _jpeg_ends(data: bytes) -> bool:
    """The end is a marker of its own, not one in a segment, such as that of a small preview."""
    at = 2
    for _ in range(_MOST_PARTS):
        if (found := _MARKER.search(data, at)) is None:
            break
        marker, at = data[found.end() - 1], found.end()
        if marker == _JPEG_END:
            return True
        if marker not in _JPEG_BARE:
            at += max(2, int.from_bytes(data[at : at + 2]))
    return False


def _png_ends(file: BinaryIO, size_bytes: int) -> bool:
    """All chunks of pixels are whole. Pillow needs no end behind the last of them, which is shorter
    than the others.
    """
    at, pixels = 8, list[int]()
    for _ in range(_MOST_PARTS):
        header = read_at(file, at, 8)
        if len(header) < 8:
            break
        size = int.from_bytes(header[:4])
        at += size + _CHUNK_BYTES
        if header[4:] == b"IEND":
            return True
        if at > size_bytes:
            return False
        pixels += [size] if header[4:] == b"IDAT" else []
    return len(pixels) == 1 or pixels[-1:] < pixels[:1]


def _gif_ends(data: bytes) -> bool:
    """Of the first frame, which is all that vLLM looks at."""

    def table_bytes(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    try:
        at = 13 + table_bytes(data[10])
        while True:
            is_frame = data[at] == ord(",")
            at += 11 + table_bytes(data[at + 9]) if is_frame else 2
            while size := data[at]:
                at += size + 1
            if is_frame or data[at + 1] == ord(";"):
                return True
            at += 1
    except IndexError:
        return False


def _boxes_end(file: BinaryIO, size_bytes: int) -> bool:
    """A box that says no length goes on to the end, wherever that is."""
    at = 0
    for _ in range(_MOST_PARTS):
        header = read_at(file, at, 16)
        if len(header) < 8:
            break
        size = int.from_bytes(header[:4])
        size = int.from_bytes(header[8:]) if size == 1 else size
        if size < 8:
            return True
        at += size
    return at == size_bytes


def _pixels_end(tile: Any, width_px: int) -> int:
    """Where the pixels end of a picture that is not compressed, 0 of others. Pillow's raw modes are
    letters, of eight bits each or of as many as follow: `RGB`, `P;4`, `RGB;16B`, `1;I`, `BGR;15`.
    """
    codec, box, offset, args = tile
    mode, stride = (*args, 0)[:2] if isinstance(args, tuple) else (args, 0)
    if codec != "raw" or not isinstance(mode, str):
        return 0
    bands, _, form = mode.partition(";")
    digits = re.match(r"\d+", form)
    bits = (int(digits[0]) if digits else 1 if bands == "1" else 8) * len(bands)
    if bands.startswith("BGR") and digits:
        bits = 16
    row_bytes = stride or -(-width_px * bits // 8)
    return int(offset + (box[3] - box[1]) * row_bytes)
