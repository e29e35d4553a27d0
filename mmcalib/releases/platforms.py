"""Where vLLM runs. Its platform is chosen at the first question, so none is asked at an import."""

from __future__ import annotations

from functools import cache
from typing import Any

from mmcalib.releases.release import VLLM_0_19


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


def fit_block_size(config: Any) -> None:
    """What vLLM's executors ask of the platform once the model is loaded: a KV block that every
    attention backend takes, and that in hybrid models is as large as a page of their state. Before
    0.19 the config itself knew.
    """
    if VLLM_0_19.reached:
        current().update_block_size_for_backend(config)


def cuda_base() -> Any:
    """The class of CUDA platforms."""
    from vllm.platforms.cuda import CudaPlatformBase

    return CudaPlatformBase


def capability(major: int, minor: int) -> Any:
    """A compute capability as platforms tell it."""
    from vllm.platforms.interface import DeviceCapability

    return DeviceCapability(major, minor)
