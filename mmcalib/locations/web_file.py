"""An object on a web server as a file."""

from __future__ import annotations

import errno
import io
from typing import BinaryIO, cast

from mmcalib.locations.bounds import BLOCK_BYTES, Patience
from mmcalib.locations.optional_deps import plain_errors
from mmcalib.locations.web import FetchedRange, Web, the_web


class WebFile(io.RawIOBase):
    """Raises OSError, from the start, when the server does not give what it says that it has."""

    def __init__(self, url: str, web: Web | None = None) -> None:
        self._url, self._web = url, web or the_web()
        self._patience, self._at = Patience(), 0
        self._first = self._fetched(0, BLOCK_BYTES)
        self.size_bytes, self.tag = self._first.size_bytes, self._first.tag

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        offset += {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size_bytes}[whence]
        if offset < 0:
            raise ValueError("before the start of the object")
        self._at = offset
        return offset

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self.size_bytes - self._at)
        if wanted <= 0:
            return 0
        data = self._first.data[self._at : self._at + wanted] or self._next(wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _next(self, wanted: int) -> bytes:
        part = self._fetched(self._at, wanted)
        if part.whole or (part.size_bytes, part.tag) != (self.size_bytes, self.tag):
            raise OSError(errno.ESTALE, "it changes while it is read")
        if not part.data:
            raise OSError(errno.EIO, "the server's answer ends too early")
        return part.data

    def _fetched(self, start: int, size_bytes: int) -> FetchedRange:
        with plain_errors(), self._patience.waiting(size_bytes) as within_s:
            part = self._web.part(self._url, start, size_bytes, within_s)
        self._patience.got(len(part.data))
        return part


def open_web(url: str) -> tuple[BinaryIO, int, str]:
    """The file, its size, and what tells its versions apart. Raises OSError and ValueError."""
    file = WebFile(url)
    buffered = io.BufferedReader(file, BLOCK_BYTES)
    return cast("BinaryIO", buffered), file.size_bytes, file.tag
