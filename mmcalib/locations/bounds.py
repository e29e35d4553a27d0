"""What somebody else's bytes may take: of time, and of memory."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds in which a server must accept, and then answer each request whole. Shorter than an item
# may take, so that a slow server costs its own item and no process.
CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 20.0

# Fetched beyond what is read: most headers of images fit, and FFmpeg reads by 32 KiB.
BLOCK_BYTES = 1 << 16

# What must come on average, beyond a first wait of `TIMEOUT_S`: a block in a second.
LEAST_BYTES_PER_S = 1 << 16

# What a server sends in one piece only, because it knows no ranges, is held in memory up to this.
MOST_WHOLE_BYTES = 1 << 26

# The longest that a reader may ask for at once. A header of an image is shorter; a table may say of
# itself what it likes.
MOST_AT_ONCE_BYTES = 1 << 28


class Patience:
    """How long one file is waited for, whose server may hand out a few bytes now and then."""

    def __init__(self) -> None:
        self._waited_s, self._read_bytes = 0.0, 0

    def left_s(self) -> float:
        """Raises OSError when nothing is left."""
        left_s = TIMEOUT_S + self._read_bytes / LEAST_BYTES_PER_S - self._waited_s
        if left_s <= 0:
            rate = f"{LEAST_BYTES_PER_S >> 10} KiB a second"
            raise OSError(errno.EIO, f"its server sends less than {rate}")
        return left_s

    @contextmanager
    def waiting(self, size_bytes: int) -> Iterator[float]:
        """While so many are read, in so many seconds at most. Raises OSError."""
        if size_bytes > MOST_AT_ONCE_BYTES:
            raise OSError(errno.EFBIG, f"over {MOST_AT_ONCE_BYTES >> 20} MiB in one piece")
        left_s, began_s = self.left_s(), time.monotonic()
        try:
            yield left_s
        finally:
            self._waited_s += time.monotonic() - began_s

    def got(self, size_bytes: int) -> None:
        self._read_bytes += size_bytes
