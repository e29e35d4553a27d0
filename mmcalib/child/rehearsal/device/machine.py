"""The imaginary GPU's memory as a whole: what torch's allocator holds, and what others do."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmcalib.child.rehearsal.device.allocator import CachingAllocator
from mmcalib.child.rehearsal.device.allocator_settings import AllocatorSettings, not_followed
from mmcalib.child.rehearsal.device.expanding import ExpandingAllocator
from mmcalib.models.gpus import Gpu

# As many as a server holds: vLLM refuses more ranks than GPUs.
GPUS = 8


@dataclass(slots=True)
class Machine:
    """One GPU. `other_bytes` are held outside torch: context, kernels, communication buffers.

    `settings` are those that torch starts with.
    """

    gpu: Gpu
    settings: AllocatorSettings = field(default_factory=AllocatorSettings)
    other_bytes: int = field(default=0, init=False)
    allocator: CachingAllocator = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

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
        kind = ExpandingAllocator if self.settings.expandable else CachingAllocator
        self.allocator = kind(self.settings.max_split_bytes)
        self.other_bytes = 0

    def set(self, given: AllocatorSettings) -> None:
        """From now on. Raises UsageError where segments would start or stop to expand."""
        if given.expandable not in (None, bool(self.settings.expandable)):
            raise not_followed(f"expandable_segments:{given.expandable}")
        self.allocator.max_split_bytes = given.max_split_bytes
