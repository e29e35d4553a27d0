"""A device guard for CUDA where torch was built without it: indexing asks for one."""

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

    A CUDA build without a device gets torch's own; a CPU build has none, and none can be
    registered from Python: it is lent the one of the `meta` device, which does nothing either.
    """
    torch._C._ensureCUDADeviceGuardSet()
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        slots = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"torch {torch.__version__} keeps device guards elsewhere") from error
    if not slots[_CUDA]:
        slots[_CUDA] = slots[_META]
