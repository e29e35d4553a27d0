"""A file that lets a reader search only so far."""

from __future__ import annotations

import io
import math
import os
import time
from typing import BinaryIO, cast

from mmcalib.media.failure import Unreadable
from mmcalib.text import MIB

# Files below this are read without a bound: Pillow searches them in less than a second.
_BOUNDED_BYTES = MIB

# Real headers take some hundred reads. Pillow looks for the next marker of a damaged JPEG or GIF
# byte by byte, up to the end of the file.
MOST_READS = 100_000

# Pillow reads WebP and AVIF whole, and PNG and TIFF tables as long as the file says they are.
_MOST_BYTES = 1 << 27

# Of sound and video that are no files of their own: each byte may have to be fetched or inflated.
# Only what has no index needs more than its two ends.
MOST_PROBED_BYTES = 1 << 28

# Seconds in which FFmpeg must open a file, and find each packet. Real files take milliseconds; a
# damaged one of many gigabytes is searched to its end.
MOST_PROBED_S = 4.0

# What decoding to the end may take; three hours of CD sound. libsndfile reads by 4 KiB.
MOST_DECODED_BYTES = 1 << 31
MOST_DECODING_READS = 1 << 20

# Reads up to this need no look at where the file ends.
_SMALL_BYTES = 1 << 16


class Bounded:
    """What Pillow and FFmpeg use of a binary file; the owner closes it. `name` is a hint for them.

    Raises `Unreadable` above the bounds, and once the reader has computed for `most_s` seconds.
    """

    def __init__(
        self,
        file: BinaryIO,
        size_bytes: int,
        *,
        what: str = "image header",
        most_bytes: int = _MOST_BYTES,
        most_reads: int = MOST_READS,
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
            # FFmpeg goes on after an error; PyAV would print the second one.
            return b""
        self._left_reads -= 1
        self._left_bytes -= size
        self._failed = True
        if self._left_reads < 0 or (
            self._until_s < math.inf and time.thread_time() > self._until_s
        ):
            raise Unreadable(f"{self._what} without an end")
        if self._left_bytes < 0:
            raise Unreadable(f"{self._what} of more than {self._most_bytes >> 20} MiB")
        data = self._file.read(size)
        self._failed = False
        return data


# What sound and video are read from: the path of a file, which C libraries open faster by name.
Medium = str | Bounded


def bounded(file: BinaryIO, size_bytes: int) -> BinaryIO:
    """`file` for Pillow to open; where it reads too far in a large one, `Unreadable` is raised."""
    return file if size_bytes < _BOUNDED_BYTES else cast("BinaryIO", Bounded(file, size_bytes))


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """At most so many bytes from `offset` on; of a file on disk, its buffer is left as it is."""
    if isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO):
        return os.pread(file.fileno(), size, offset)
    file.seek(offset)
    return file.read(size)
