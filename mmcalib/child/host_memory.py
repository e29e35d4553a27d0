"""Refusing what would get this process killed."""

from __future__ import annotations

from mmcalib.processes.free_memory import free_bytes
from mmcalib.sizes import GIB

_SHARE = 0.8


def require_host_memory(needed_bytes: int) -> None:
    """Raises MemoryError with both figures where so much is not free, in a container of its own."""
    free = free_bytes()
    if free is not None and needed_bytes > _SHARE * free:
        raise MemoryError(
            f"processing it takes about {needed_bytes / GIB:.0f} GiB of host memory, "
            f"{free / GIB:.0f} GiB are free here"
        )
