"""The GPU that a log is of, by the memory that it states."""

from __future__ import annotations

from typing import Final

from mmcalib.derive.logs import GpuOccupied, OutOfMemory, StartupLog
from mmcalib.errors import UsageError
from mmcalib.gpus import catalogue, present
from mmcalib.gpus.gpu import Gpu
from mmcalib.sizes import GIB

# Logs round to 0.01 GiB, and drivers differ a little in what they leave.
_ROUNDED: Final = 0.005


def gpu_of_log(log: StartupLog) -> Gpu:
    """The GPU whose memory the log states, or this machine's. Raises UsageError."""
    total = total_bytes(log)
    here = present.present() if present.has_gpu() else None
    if total is None:
        if here is not None:
            return here
        raise UsageError("the log does not say which GPU it is of", hint="--gpu NAME")
    if here is not None and same_size(here.total_bytes, total):
        return here
    alike = [
        gpu
        for gpu in catalogue.all()
        if same_size(gpu.total_bytes, total) and gpu.capability and not gpu.memory_only
    ]
    if len(alike) == 1:
        return alike[0]
    size = f"{total / GIB:.2f}GiB"
    if alike:
        raise UsageError(
            f"the log is of a GPU with {size}: {', '.join(gpu.name for gpu in alike)}",
            hint=f"--gpu {alike[0].name}, or whichever it is",
        )
    raise UsageError(
        f"the log is of a GPU with {size}, which no known GPU has",
        hint=f"--gpu-memory {size} --capability X.Y, or --gpu NAME",
    )


def total_bytes(log: StartupLog) -> int | None:
    """The memory of the log's GPU, where it says."""
    if log.gpu_total_bytes is not None:
        return log.gpu_total_bytes
    for trouble in log.troubles:
        if isinstance(trouble.cause, OutOfMemory | GpuOccupied) and trouble.cause.total_bytes:
            return trouble.cause.total_bytes
    return None


def same_size(one: int, other: int) -> bool:
    """Whether two figures are of one size of GPU."""
    return abs(one - other) <= _ROUNDED * other
