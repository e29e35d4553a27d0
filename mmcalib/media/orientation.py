"""Whether a viewer turns an image on its side, from metadata alone."""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

from PIL import ExifTags, Image, TiffImagePlugin

from mmcalib.media.failure import READ_ERRORS

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


def is_sideways(image: Image.Image, file: BinaryIO) -> bool:
    """Whether width and height exchange their places; `file` is what the image was opened from."""
    try:
        return _orientation(image, file) in _SIDEWAYS
    except READ_ERRORS:
        # vLLM's `normalize_image` leaves an image with damaged EXIF as it is stored.
        return False


def _orientation(image: Image.Image, file: BinaryIO) -> int:
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        # What `getexif` would parse a third time.
        value = image.tag_v2.get(_TAG)
        return value if isinstance(value, int) else _by_pillow(image)
    exif = image.info.get("exif")
    elsewhere = not image.info.keys().isdisjoint(_ELSEWHERE)
    if exif is None and not elsewhere:
        return _behind_the_pixels(image, file) if image.format == "PNG" else 1
    quick = _in_first_directory(exif) if isinstance(exif, bytes) else None
    if quick is None or (quick == 0 and elsewhere):
        return _by_pillow(image)
    return quick


def _by_pillow(image: Image.Image) -> int:
    # PngImageFile.getexif decodes all pixels in search of a later chunk.
    exif = Image.Image.getexif(image) if image.format == "PNG" else image.getexif()
    return int(exif.get(_TAG) or 1)


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


def _behind_the_pixels(image: Image.Image, file: BinaryIO) -> int:
    """What a PNG's last chunk of EXIF says; 1 without one."""
    first = image.tile[0].offset - 8 if image.tile else 0
    # Before the end, because it is still in the buffer.
    file.seek(first)
    length = file.read(4)
    size_bytes = file.seek(0, os.SEEK_END)
    if _ends_in_pixels(file, first, int.from_bytes(length), size_bytes):
        return 1
    file.seek(max(0, size_bytes - _PNG_TAIL_BYTES))
    tail = file.read(_PNG_TAIL_BYTES)
    if b"eXIf" not in tail:
        return 1
    before, _, after = tail.rpartition(b"eXIf")
    exif = Image.Exif()
    exif.load(b"Exif\0\0" + after[: int.from_bytes(before[-4:])])
    return int(exif.get(_TAG) or 1)


def _ends_in_pixels(file: BinaryIO, first: int, length: int, size_bytes: int) -> bool:
    """Whether pixels are the last chunk but IEND; `first` is where theirs begin, the first chunk of
    `length`.

    It is looked for where it is if all but the last are as long: so encoders write them.
    """
    end = size_bytes - _CHUNK_BYTES
    step = length + _CHUNK_BYTES
    last = first + (end - first - 1) // step * step
    file.seek(last)
    header = file.read(8)
    return header[4:] == b"IDAT" and last + int.from_bytes(header[:4]) + _CHUNK_BYTES == end
