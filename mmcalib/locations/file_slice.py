"""A part of a file as a file of its own."""

from __future__ import annotations

import io
from typing import BinaryIO


class Window(io.RawIOBase):
    """`size_bytes` of `file` from `start` on. `file` may have several; it is not closed by them."""

    def __init__(self, file: BinaryIO, start: int, size_bytes: int) -> None:
        self._file, self._start, self._size_bytes, self._at = file, start, size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = max(0, self._size_bytes - self._at)
        # A slice of a bytearray would be a copy.
        read = self.read_at(self._start + self._at, memoryview(buffer)[:left])
        self._at += read
        return read

    def read_at(self, offset: int, into: memoryview) -> int:
        """Fill `into` from there on in `file`; the number of bytes read."""
        self._file.seek(offset)
        data = self._file.read(len(into))
        into[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._at
        elif whence == io.SEEK_END:
            offset += self._size_bytes
        if offset < 0:
            raise ValueError("before the start of the member")
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at
