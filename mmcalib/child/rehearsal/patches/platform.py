"""vLLM's CUDA platform, with every question to the driver answered from the imaginary GPU."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace
from typing import Any

from mmcalib.child.rehearsal.device.machine import GPUS, Machine
from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import platforms, targets
from mmcalib.releases.release import installed


def disown_build() -> None:
    """A CPU wheel calls itself so by its name or version, and then turns Triton off; before 0.32
    where there is no distribution `vllm`, too. Must come before anything of vLLM is imported.
    """
    asked = importlib.metadata.version

    def version(distribution_name: str) -> str:
        return installed("vllm") if distribution_name == "vllm" else asked(distribution_name)

    installed("vllm")
    replace("importlib.metadata.version", version)
    replace(targets.VERSION_SAYS, lambda words: False)


def install(machine: Machine) -> None:
    """Make it vLLM's current platform. Must come before anything of vLLM reads the platform."""
    base: Any = platforms.cuda_base()

    class ImaginaryCudaPlatform(base):  # type: ignore[misc] # vLLM has no stubs
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return platforms.capability(*machine.capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return machine.gpu.torch_name

        @classmethod
        def get_device_uuid(cls, device_id: int = 0) -> str:
            return "imaginary"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return machine.gpu.total_bytes

        @classmethod
        def is_fully_connected(cls, device_ids: list[int]) -> bool:
            return True

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return True

        @classmethod
        def device_count(cls) -> int:
            return GPUS

        @classmethod
        def log_warnings(cls) -> None:
            return None

        @classmethod
        def get_device_numa_node(cls, device_id: int = 0) -> None:
            return None

        @classmethod
        def get_all_device_numa_nodes(cls) -> None:
            return None

        @classmethod
        def get_cuda_runtime_major(cls) -> int:
            return 13

    replace(targets.PLATFORM, ImaginaryCudaPlatform())
    assert platforms.current().is_cuda()
    if machine.gpu.unified:
        _share_memory(machine)


def _share_memory(machine: Machine) -> None:
    """On an integrated GPU vLLM takes what the system has available for what is free."""

    def virtual_memory() -> SimpleNamespace:
        free, total = machine.memory_info()
        return SimpleNamespace(available=free, total=total)

    replace(targets.SYSTEM_MEMORY, SimpleNamespace(virtual_memory=virtual_memory))
