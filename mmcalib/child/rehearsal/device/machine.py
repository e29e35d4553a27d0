"""The imaginary GPU's memory as a whole: what torch's allocator holds, and what others do."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmcalib.child.rehearsal.device.allocator import CachingAllocator
from mmcalib.gpus.gpu import Gpu

# As many as a server holds: vLLM refuses more ranks than GPUs.
GPUS = 8


@dataclass(slots=True)
class Machine:
    """One GPU. `other_bytes` are held outside torch: context, kernels, communication buffers."""

    gpu: Gpu
    allocator: CachingAllocator = field(default_factory=CachingAllocator)
    other_bytes: int = 0

    @property
    def capability(self) -> tuple[int, int]:
        assert self.gpu.capability is not None
        return self.gpu.capability

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes, as cudaMemGetInfo has them; free may go below zero."""
        total = self.gpu.total_bytes
        return total - self.allocator.reserved_bytes - self.other_bytes, total

    def clear(self) -> None:
        """A GPU on which nothing has run yet."""
        self.allocator = CachingAllocator()
        self.other_bytes = 0
