"""Headers of MP4, Matroska, FLV and AVI: a rotation, and whether a file ends too early."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import BinaryIO

from mmcalib.media.bounded import read_at

# Limit of boxes on one level; real headers have a dozen, and one per track.
_MOST_BOXES = 256

# Bytes of a Matroska file to search: mkvmerge leaves 4 KiB free before the tracks.
_HEAD_BYTES = 1 << 14

# The first two rows of the identity matrix (ISO/IEC 14496-12, 8.3.2).
_UPRIGHT = struct.pack(">6i", 1 << 16, 0, 0, 0, 1 << 16, 0)
# Offset of the matrix in `mvhd` and `tkhd`, by version of the box.
_MATRIX = {b"mvhd": (36, 48), b"tkhd": (40, 52)}

# Elements of Matroska (RFC 9559).
_EBML, _SEEK, _TRACKS = b"\x1a\x45\xdf\xa3", b"\x53\xab\x84", b"\x16\x54\xae\x6b"
_SEGMENT = b"\x18\x53\x80\x67"
# Sizes that a writer fills in at the end, if it can.
_OPEN_RIFF, _OPEN_SEGMENT = 0xFFFFFFFF, b"\x01" + b"\xff" * 7
# FLV's metadata: a name, the type of a number, and the number.
_FLV_SIZE = re.compile(rb"\x00\x08filesize\x00(.{8})", re.DOTALL)
# The projection element: its size, and the first element in it.
_PROJECTION = re.compile(rb"\x76\x70.{1,8}?\x76[\x71-\x75]", re.DOTALL)


def may_be_rotated(file: BinaryIO) -> bool:
    """False if an MP4, QuickTime or Matroska header certainly contains no rotation."""
    head = read_at(file, 0, _HEAD_BYTES)
    if head.startswith(_EBML):
        # The tracks come before the large elements, after an index that names their offset.
        data = head.replace(_SEEK + _TRACKS, b"").partition(_TRACKS)[2]
        end = _element_end(data)
        return not 0 < end <= len(data) or _PROJECTION.search(data, 0, end) is not None
    for kind, start, end in boxes(file, 0, file.seek(0, os.SEEK_END)):
        if kind == b"moov":
            # The matrix of a track is multiplied by that of the movie.
            parts = list(boxes(file, start, end))
            tracks = [part for part in parts if part[0] == b"trak"]
            headers = [part for part in parts if part[0] == b"mvhd"]
            for _, first, last in tracks:
                headers += [part for part in boxes(file, first, last) if part[0] == b"tkhd"]
            upright = (_is_upright(file, *header) for header in headers)
            return len(headers) != len(tracks) + 1 or not all(upright)
    return True


def _element_end(data: bytes) -> int:
    """Return where a Matroska element ends whose size `data` starts with; 0 without one."""
    # A number's leading zeros encode its length (RFC 8794).
    begins = 9 - data[0].bit_length() if data else 0
    return begins + (int.from_bytes(data[:begins]) & ~(1 << 7 * begins))


def is_video_truncated(file: BinaryIO) -> bool:
    """True if a file ends before its media data do, or is Matroska with another file behind it."""
    size_bytes, head = file.seek(0, os.SEEK_END), read_at(file, 0, _HEAD_BYTES)
    if head.startswith(_EBML):
        before, _, segment = head.partition(_SEGMENT)
        end = len(before + _SEGMENT) + _element_end(segment)
        if not segment or segment.startswith(_OPEN_SEGMENT):
            return False
        return end > size_bytes or read_at(file, end, 4) == _EBML
    if head.startswith(b"FLV") and (size := _FLV_SIZE.search(head)):
        return bool(struct.unpack(">d", size[1])[0] > size_bytes)
    if head.startswith(b"RIFF"):
        listed = int.from_bytes(head[4:8], "little")
        return head[8:12] == b"AVI " and size_bytes < 8 + listed < 8 + _OPEN_RIFF
    return any(kind == b"mdat" and end > size_bytes for kind, _, end in boxes(file, 0, size_bytes))


def _is_upright(file: BinaryIO, kind: bytes, start: int, end: int) -> bool:
    data = read_at(file, start, min(end - start, 80))
    at = _MATRIX[kind][data[:1] == b"\1"]
    return data[at : at + len(_UPRIGHT)] == _UPRIGHT


def boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of each box, up to the first invalid one; `end` may cut it."""
    for _ in range(_MOST_BOXES):
        header = read_at(file, start, 16)
        if start + 8 > end or len(header) < 8:
            return
        size, kind, begins = int.from_bytes(header[:4]), header[4:8], 8
        if size == 1:
            size, begins = int.from_bytes(header[8:]), 16
        elif size == 0:
            size = end - start
        if size < begins:
            return
        yield kind, start + begins, start + size
        start += size
