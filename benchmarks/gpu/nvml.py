"""How much of the GPU is in use, asked of the driver's management library: it takes no memory."""

from __future__ import annotations

import ctypes
import time

LIBRARY = "libnvidia-ml.so.1"
# What a process that was just killed may leave for a moment.
SLACK_BYTES = 256 << 20
SETTLE_S = 10.0


class _Memory(ctypes.Structure):
    """nvmlMemory_t of nvml.h."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def used_bytes() -> int | None:
    """Bytes in use on the first GPU, by anyone; None where nobody can say."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    device, memory = ctypes.c_void_p(), _Memory()
    if nvml.nvmlInit_v2():
        return None
    if nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
        return None
    if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
        return None
    return int(memory.used)


def settled_bytes(before: int | None) -> int | None:
    """Bytes in use once no more than `before` are, or at the end of patience."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        used = used_bytes()
        if used is None or before is None or used <= before + SLACK_BYTES:
            return used
        if time.monotonic() > deadline:
            return used
        time.sleep(0.2)
