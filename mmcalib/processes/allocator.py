"""What the C library does with memory that is let go of."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

from mmcalib.sizes import MIB

# `M_MMAP_THRESHOLD` of glibc's malloc.h, and the bytes from which a block is a mapping of its own.
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = MIB


def give_back_large_blocks() -> None:
    """A block of a megabyte goes back to the system when nobody needs it any more.

    glibc counts blocks as small up to the largest that was ever let go of, 32 MiB at most, and
    keeps those between others: a process that goes through columns of a million numbers stays half
    as large again. Another C library does as it likes.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
