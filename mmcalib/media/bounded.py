"""Files that limit how much a reader may read and search."""

from __future__ import annotations

import io
import math
import os
import time
from typing import BinaryIO, cast

from mmcalib.media.failure import Unreadable
from mmcalib.text import MIB

# Smaller files need no limit: Pillow searches them in less than a second.
_BOUNDED_BYTES = MIB

# Real headers take a few hundred reads. In damaged JPEGs and GIFs Pillow searches byte by byte.
MAX_READS = 100_000

# Pillow reads WebP and AVIF whole, and trusts the length of tables in PNG and TIFF.
_MOST_BYTES = 1 << 27

# For media in archives or on servers, where each byte may have to be fetched or inflated. Only
# files without an index need more than their two ends.
MAX_PROBED_BYTES = 1 << 28

# Seconds for FFmpeg to open a file or find a packet: it searches a damaged file to its end.
MAX_PROBED_S = 4.0

# Limits for decoding to the end: three hours of CD audio. libsndfile reads 4 KiB at a time.
MAX_DECODED_BYTES = 1 << 31
MAX_DECODING_READS = 1 << 20

# Smaller reads need no check of the remaining bytes.
_SMALL_BYTES = 1 << 16


class LimitedFile:
    """Limited view of a binary file for Pillow and FFmpeg; `name` is a hint for them.

    Raises `Unreadable` beyond the limits or after `most_s` seconds of CPU time. Closes nothing.
    """

    def __init__(
        self,
        file: BinaryIO,
        size_bytes: int,
        *,
        what: str = "image header",
        most_bytes: int = _MOST_BYTES,
        most_reads: int = MAX_READS,
        most_s: float = math.inf,
        name: str = "",
    ) -> None:
        self._file = file
        self.size_bytes = size_bytes
        self.name = name
        self._what = what
        self._most_bytes = self._left_bytes = most_bytes
        self._left_reads = most_reads
        self._until_s = math.inf if most_s == math.inf else time.thread_time() + most_s
        self._failed = False
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _SMALL_BYTES:
            rest = max(0, self.size_bytes - self._file.tell())
            size = rest if size < 0 else min(size, rest)
        if self._failed:
            # FFmpeg continues after an error, and PyAV would print the second one.
            return b""
        self._left_reads -= 1
        self._left_bytes -= size
        self._failed = True
        if self._left_reads < 0 or (
            self._until_s < math.inf and time.thread_time() > self._until_s
        ):
            raise Unreadable(f"{self._what} takes too long to read")
        if self._left_bytes < 0:
            raise Unreadable(f"{self._what} takes more than {self._most_bytes >> 20} MiB to read")
        data = self._file.read(size)
        self._failed = False
        return data


# Source of audio and video. C libraries open a file faster by its path.
Medium = str | LimitedFile


def limit_reads(file: BinaryIO, size_bytes: int) -> BinaryIO:
    """Return `file` for Pillow, limited so that reading a large one far raises `Unreadable`."""
    return file if size_bytes < _BOUNDED_BYTES else cast("BinaryIO", LimitedFile(file, size_bytes))


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Read at most `size` bytes at `offset`, without touching the buffer of a file on disk."""
    if isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO):
        return os.pread(file.fileno(), size, offset)
    file.seek(offset)
    return file.read(size)
