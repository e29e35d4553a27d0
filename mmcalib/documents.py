"""Files that a user names and somebody else may have made: no more of them is read than is sane."""

from __future__ import annotations

import errno
import os
from io import FileIO
from pathlib import Path


def open_document(path: str | Path) -> FileIO:
    """The file for reading, also a pipe that somebody writes to; one that nobody does is empty.

    Raises OSError.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    os.set_blocking(handle, True)
    try:
        # A folder is refused here.
        return FileIO(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def read_document(path: str | Path, most_bytes: int) -> bytes:
    """The whole file. Raises OSError, also for one that is larger."""
    data = bytearray()
    with open_document(path) as file:
        while block := file.read(min(1 << 20, most_bytes + 1 - len(data))):
            data += block
            if len(data) > most_bytes:
                raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes")
    return bytes(data)
