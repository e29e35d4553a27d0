"""A file that lets a header's reader search only so far."""

from __future__ import annotations

from typing import BinaryIO, cast

from mmcalib.media.failure import Unreadable

# Files below this are read without a bound: Pillow searches them in less than a second.
_BOUNDED_BYTES = 1 << 20

# Real headers take some hundred reads. Pillow looks for the next marker of a damaged JPEG or GIF
# byte by byte, up to the end of the file.
_MOST_READS = 100_000

# Pillow reads WebP and AVIF whole, and PNG and TIFF tables as long as the file says they are.
_MOST_BYTES = 1 << 27

# Reads up to this need no look at where the file ends.
_SMALL_BYTES = 1 << 16


def bounded(file: BinaryIO, size_bytes: int) -> BinaryIO:
    """`file` for Pillow to open; where it reads too far in a large one, `Unreadable` is raised."""
    return file if size_bytes < _BOUNDED_BYTES else cast("BinaryIO", _Bounded(file, size_bytes))


class _Bounded:
    """The part of a binary file's interface that Pillow uses to open an image."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self._reads = 0
        self._left_bytes = _MOST_BYTES
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _SMALL_BYTES:
            rest = max(0, self._size_bytes - self._file.tell())
            size = rest if size < 0 else min(size, rest)
        self._reads += 1
        self._left_bytes -= size
        if self._reads > _MOST_READS:
            raise Unreadable("image header without an end")
        if self._left_bytes < 0:
            raise Unreadable(f"image header of more than {_MOST_BYTES >> 20} MiB")
        return self._file.read(size)
