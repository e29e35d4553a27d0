"""The GPU of this machine, asked of the CUDA driver and not of torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from mmcalib.errors import UsageError
from mmcalib.gpus.gpu import Gpu

LIBRARY = "libcuda.so.1"
# CUresult and CUdevice_attribute of cuda.h.
CUDA_SUCCESS = 0
CUDA_ERROR_NO_DEVICE = 100
MULTIPROCESSOR_COUNT = 16
INTEGRATED = 18
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76
# The room for a name in cudaDeviceProp, which torch reads.
NAME_BYTES = 256
INSTEAD = "name one instead: --gpu NAME"


class Driver(Protocol):
    """What is asked of the CUDA driver; devices count from 0, as torch numbers them."""

    def count(self) -> int: ...
    def name(self, device: int) -> str: ...
    def total_bytes(self, device: int) -> int: ...
    def attribute(self, code: int, device: int) -> int: ...


class CudaDriver:
    """The driver behind libcuda; raises UsageError for whatever it refuses.

    It stays initialised in this process, so whoever uses CUDA afterwards must be spawned, not
    forked. CUDA_VISIBLE_DEVICES is heeded, as it is by torch.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._ask("cuInit", 0)

    def count(self) -> int:
        found = ctypes.c_int()
        self._ask("cuDeviceGetCount", ctypes.byref(found))
        return found.value

    def name(self, device: int) -> str:
        text = ctypes.create_string_buffer(NAME_BYTES)
        self._ask("cuDeviceGetName", text, NAME_BYTES, self._handle(device))
        return text.value.decode("utf-8", errors="replace")

    def total_bytes(self, device: int) -> int:
        # The same figure as cudaDeviceProp.totalGlobalMem (torch's total_memory) and, on Linux, as
        # cudaMemGetInfo's total, which vLLM divides: public logs give an L4 as 22563 MiB by the one
        # and 22.03 GiB by the other, an H100 as 81089 MiB and 79.19 GiB, a GB10 as 124610 MiB and
        # 121.69 GiB. nvidia-smi's total is larger, by what the driver keeps for itself.
        found = ctypes.c_size_t()
        self._ask("cuDeviceTotalMem_v2", ctypes.byref(found), self._handle(device))
        return found.value

    def attribute(self, code: int, device: int) -> int:
        found = ctypes.c_int()
        self._ask("cuDeviceGetAttribute", ctypes.byref(found), code, self._handle(device))
        return found.value

    def _handle(self, device: int) -> ctypes.c_int:
        handle = ctypes.c_int()
        self._ask("cuDeviceGet", ctypes.byref(handle), device)
        return handle

    def _ask(self, function: str, *arguments: object) -> None:
        result = getattr(self._library, function)(*arguments)
        if result == CUDA_ERROR_NO_DEVICE:
            raise UsageError("this machine has no GPU that CUDA can see", hint=INSTEAD)
        if result != CUDA_SUCCESS:
            raise UsageError(f"the CUDA driver answers {function} with {result}", hint=INSTEAD)


def open_driver() -> Driver:
    """The CUDA driver of this machine; raises UsageError when it has none."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise UsageError("this machine has no CUDA driver, so no GPU", hint=INSTEAD) from error
    return CudaDriver(library)


def present(driver: Callable[[], Driver] = open_driver) -> Gpu:
    """The first GPU of this machine; raises UsageError when there is none."""
    cuda = driver()
    if cuda.count() == 0:
        raise UsageError("this machine has no GPU that CUDA can see", hint=INSTEAD)
    name = cuda.name(0)
    return Gpu(
        name=name,
        torch_name=name,
        total_bytes=cuda.total_bytes(0),
        total_status="read",
        source="the CUDA driver of this machine",
        capability=(cuda.attribute(CAPABILITY_MAJOR, 0), cuda.attribute(CAPABILITY_MINOR, 0)),
        sm_count=cuda.attribute(MULTIPROCESSOR_COUNT, 0),
        unified=bool(cuda.attribute(INTEGRATED, 0)),
    )


def has_gpu(driver: Callable[[], Driver] = open_driver) -> bool:
    """Whether `present` would find a GPU."""
    try:
        return driver().count() > 0
    except UsageError:
        return False
