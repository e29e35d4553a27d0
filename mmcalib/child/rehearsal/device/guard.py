"""A device guard for CUDA that asks no driver: indexing and copies want one."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

# c10::impl::device_guard_impl_registry, one pointer per device type; c10/core/DeviceType.h.
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA, _META, _DEVICE_TYPES = 1, 14, 22


@cache
def ensure() -> None:
    """Give CUDA a guard that does nothing. Raises RuntimeError where this torch keeps it elsewhere.

    A CPU build has none, and a CUDA build's asks the driver which device is current. None can be
    registered from Python: CUDA is lent the one of the `meta` device, which does nothing.
    """
    # Before torch 2.11 a CUDA build sets its own when it is imported.
    if hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        torch._C._ensureCUDADeviceGuardSet()
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        slots = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"torch {torch.__version__} keeps device guards elsewhere") from error
    slots[_CUDA] = slots[_META]
