"""Triton kernels: declared as always, launched as nothing. Their results are given tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from mmcalib.child.rehearsal.device.machine import Machine
from mmcalib.child.rehearsal.patches.cuda import properties
from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import targets


class _Launched:
    """What a launch returns; a caller may ask it for a compiled kernel's facts."""

    n_regs = n_spills = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _nothing(self: Any, *args: Any, **kwargs: Any) -> _Launched:
    return _Launched()


class _Driver:
    """The driver of the imaginary GPU. Linear attention asks it, when it is imported, for what
    kind of device its kernels are and how much shared memory that has.
    """

    def __init__(self, machine: Machine) -> None:
        from triton.backends.compiler import GPUTarget

        about = properties(machine)
        major, minor = machine.capability
        known = {
            "max_shared_mem": about.shared_memory_per_block_optin,
            "multiprocessor_count": about.multi_processor_count,
            "warpSize": about.warp_size,
        }
        self._target = GPUTarget("cuda", 10 * major + minor, about.warp_size)
        self.utils = SimpleNamespace(get_device_properties=lambda index: known)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def install(machine: Machine) -> None:
    """Needs the triton package, which every CUDA build of vLLM brings."""
    import triton

    triton.runtime.driver.set_active(_Driver(machine))
    for kind in ("jit.JITFunction", "autotuner.Autotuner", "autotuner.Heuristics"):
        for method in ("run", "warmup"):
            replace(targets.triton(f"{kind}.{method}"), _nothing)
    # Nobody asks the driver for devices that are not there.
    replace("triton.runtime.autotuner.Autotuner.__init__", _plain_autotuner)


def _plain_autotuner(self: Any, fn: Any, arg_names: Any, *args: Any, **kwargs: Any) -> None:
    self.fn = self.base_fn = fn
    self.arg_names = arg_names
    self.configs = list(args[0]) if args else []
