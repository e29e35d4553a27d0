"""Refusing what would get this process killed."""

from __future__ import annotations

from mmcalib.processes import free_bytes
from mmcalib.text import GIB

_SHARE = 0.8
_PROCESSING = (
    "processing it takes about {needed:.0f} GiB of host memory, {free:.0f} GiB are free here"
)


def require_host_memory(needed_bytes: int, words: str = _PROCESSING) -> None:
    """Raises MemoryError with both figures where so much is not free, in a container of its own."""
    free = free_bytes()
    if free is not None and needed_bytes > _SHARE * free:
        raise MemoryError(words.format(needed=needed_bytes / GIB, free=free / GIB))
