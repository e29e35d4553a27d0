"""Where vLLM runs. Its platform is chosen at the first question, so none is asked at an import."""

from __future__ import annotations

from typing import Any


def current() -> Any:
    """vLLM's own answer: `is_cpu`, `is_cuda`, `is_cuda_alike`, `device_type`."""
    from vllm.platforms import current_platform

    return current_platform


def cuda_base() -> Any:
    """The class of CUDA platforms."""
    from vllm.platforms.cuda import CudaPlatformBase

    return CudaPlatformBase


def capability(major: int, minor: int) -> Any:
    """A compute capability as platforms tell it."""
    from vllm.platforms.interface import DeviceCapability

    return DeviceCapability(major, minor)
