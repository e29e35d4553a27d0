"""Whether the header of a video names a rotation, so that a frame need be decoded to learn it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

from mmcalib.media.bounded import read_at

# Boxes looked at on one level at most; real headers have a dozen, and one per track.
_MOST_BOXES = 256

# Of Matroska only this much is looked at: mkvmerge leaves 4 KiB free before the tracks.
_HEAD_BYTES = 1 << 13

# The first two rows of a matrix that turns and scales nothing (ISO/IEC 14496-12, 8.3.2).
_UPRIGHT = struct.pack(">6i", 1 << 16, 0, 0, 0, 1 << 16, 0)
# Where the matrix stands in `mvhd` and `tkhd`, per version of the box.
_MATRIX = {b"mvhd": (36, 48), b"tkhd": (40, 52)}

# Elements of Matroska (RFC 9559).
_EBML, _SEGMENT, _TRACKS = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67", b"\x16\x54\xae\x6b"
_PROJECTION = b"\x76\x70"


def may_be_turned(file: BinaryIO) -> bool:
    """False where the header of an MP4, QuickTime or Matroska file surely names no rotation.

    Only headers are read. Raises OSError or Unreadable where `file` does.
    """
    head = read_at(file, 0, _HEAD_BYTES)
    if head.startswith(_EBML):
        return _matroska(head)
    return _mov(file, file.seek(0, os.SEEK_END))


def _mov(file: BinaryIO, size_bytes: int) -> bool:
    for kind, start, end in _boxes(file, 0, size_bytes):
        if kind == b"moov":
            # The matrix of a track is multiplied by that of the movie.
            parts = list(_boxes(file, start, end))
            tracks = [part for part in parts if part[0] == b"trak"]
            headers = [part for part in parts if part[0] == b"mvhd"]
            for _, first, last in tracks:
                headers += [part for part in _boxes(file, first, last) if part[0] == b"tkhd"]
            return len(headers) != len(tracks) + 1 or not all(
                _is_upright(file, *header) for header in headers
            )
    return True


def _is_upright(file: BinaryIO, kind: bytes, start: int, end: int) -> bool:
    data = read_at(file, start, min(end - start, 80))
    at = _MATRIX[kind][data[:1] == b"\1"]
    return data[at : at + len(_UPRIGHT)] == _UPRIGHT


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, and where the contents begin and end, as far as they make sense."""
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
        yield kind, start + begins, min(start + size, end)
        start += size


def _matroska(head: bytes) -> bool:
    """By a `Projection` in the tracks, which stand before all that is large."""
    at = 0
    while at < len(head):
        # The lengths of identifiers and of numbers are their leading zeros (RFC 8794).
        size_at = at + 9 - head[at].bit_length()
        if size_at >= len(head):
            break
        begins = size_at + 9 - head[size_at].bit_length()
        size = int.from_bytes(head[size_at:begins]) & ~(1 << 7 * (begins - size_at))
        element = head[at:size_at]
        if element == _TRACKS:
            return begins + size > len(head) or _PROJECTION in head[begins : begins + size]
        at = begins if element == _SEGMENT else begins + size
    return True
