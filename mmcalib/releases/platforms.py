"""Where vLLM runs. Its platform is chosen at the first question, so none is asked at an import."""

from __future__ import annotations

from functools import cache
from typing import Any


def current() -> Any:
    """vLLM's own answer: `is_cpu`, `is_cuda`, `is_cuda_alike`, `device_type`."""
    from vllm.platforms import current_platform

    return current_platform


def borrow_cpu() -> None:
    """Where vLLM finds nothing to run on (a build for GPUs without one), let its processors and
    configurations take the CPU for its platform. They compute there anyway; an engine does not.
    """
    import vllm.platforms
    from vllm.platforms.interface import PlatformEnum

    # `is_unspecified` is younger than some releases that are rehearsed.
    if vllm.platforms.current_platform._enum is PlatformEnum.UNSPECIFIED:
        vllm.platforms._current_platform = _borrowed_cpu()()


def starts_engines() -> bool:
    """Whether an engine can start here: not in a build without kernels for this machine."""
    return not isinstance(current(), _borrowed_cpu())


@cache
def _borrowed_cpu() -> Any:
    from vllm.platforms.cpu import CpuPlatform

    class BorrowedCpu(CpuPlatform):  # type: ignore[misc] # vLLM has no stubs
        """The CPU's, in a build without its kernels."""

    return BorrowedCpu


def cuda_base() -> Any:
    """The class of CUDA platforms."""
    from vllm.platforms.cuda import CudaPlatformBase

    return CudaPlatformBase


def capability(major: int, minor: int) -> Any:
    """A compute capability as platforms tell it."""
    from vllm.platforms.interface import DeviceCapability

    return DeviceCapability(major, minor)
