"""Memory of the imaginary GPU: its allocator, its live tensors, and torch's workspaces."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from mmcalib.child.rehearsal.allocator import (
    AllocatorSettings,
    CachingAllocator,
    ExpandingAllocator,
    unsupported_setting,
)
from mmcalib.child.tensors import storage_sizes
from mmcalib.domain.memory import LiveTensor
from mmcalib.models.gpus import Gpu
from mmcalib.text import KIB, MIB

# GPUs of a typical server; vLLM refuses more ranks than GPUs.
GPUS = 8


# The list of a peak's tensors leaves out smaller ones, which do not explain it.
_WORTH_NAMING_BYTES = MIB
LARGEST_TENSORS = 12


@dataclass(slots=True)
class LedgerPhase:
    """Allocated bytes at a phase's start, peak and end, and its largest tensors at the peak.

    `scratch_bytes` is the part of the peak inside kernels. `largest` leaves out tensors from before
    the phase. `embeddings` counts the encoder's output for its items.
    """

    name: str
    start_bytes: int
    peak_bytes: int
    end_bytes: int = 0
    scratch_bytes: int = 0
    scratch_operation: str = ""
    largest: tuple[LiveTensor, ...] = ()
    items: int = 0
    embeddings: int = 0
    output_bytes: int = 0
    storages: int = 0
    _before: dict[int, LiveTensor] = field(default_factory=dict)
    _left: dict[int, LiveTensor] = field(default_factory=dict)
    _at_peak: dict[int, LiveTensor] | None = None
    _grown: bool = field(default=False)


class Ledger:
    """Memory of the imaginary GPU. Storages of fake tensors are allocated when they appear, and
    freed when they die.

    `other_bytes` are outside torch (context, kernels), and so are `local_bytes`: what CUDA's local
    memory has grown by, for the stack of the kernel `local_source`. `settings` are torch's.
    """

    def __init__(self, gpu: Gpu, settings: AllocatorSettings | None = None) -> None:
        self.gpu, self._settings = gpu, settings or AllocatorSettings()
        self._era = 0
        self._phases: list[LedgerPhase] = []
        self.clear()

    def clear(self) -> None:
        """Empty the GPU; finalizers of older tensors then do nothing (`_era`)."""
        self._era += 1
        kind = ExpandingAllocator if self._settings.expandable else CachingAllocator
        self.allocator: CachingAllocator = kind(self._settings.max_split_bytes)
        self.other_bytes, self.local_bytes, self.local_source = 0, 0, ""
        self.module = ""
        self.live: dict[int, LiveTensor] = {}
        # Addresses of their blocks; 0 is no block.
        self._blocks: dict[int, int] = {}

    def set(self, given: AllocatorSettings) -> None:
        """Apply new settings. Raises UsageError if they change `expandable_segments`."""
        if given.expandable not in (None, bool(self._settings.expandable)):
            raise unsupported_setting(f"expandable_segments:{given.expandable}")
        self.allocator.max_split_bytes = given.max_split_bytes

    @property
    def outside_bytes(self) -> int:
        """Bytes outside torch."""
        return self.other_bytes + self.local_bytes

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes like cudaMemGetInfo, but free may be negative."""
        total = self.gpu.total_bytes
        return total - self.allocator.reserved_bytes - self.outside_bytes, total

    @property
    def free_bytes(self) -> int:
        """Bytes that neither tensors nor other processes use; may be negative."""
        return self.gpu.free_at_start - self.allocator.allocated_bytes - self.outside_bytes

    def book(self, tensor: torch.Tensor, operation: str) -> None:
        """Allocate the tensor's storage once, even if several tensors view it; follow resizing."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        nbytes = storage.nbytes()
        booked = self.live.get(key)
        if booked is not None:
            if booked.nbytes == nbytes:
                return
            self._release(key, self._era)
        else:
            weakref.finalize(storage, self._release, key, self._era).atexit = False
        self._blocks[key] = self.allocator.allocate(nbytes)
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        self.live[key] = LiveTensor(nbytes, operation, shape, dtype, self.module)
        self._raise_peaks(0, "")

    def exempt(self, tensor: torch.Tensor) -> None:
        """Do not count the tensor's storage, because it is host memory."""
        key = tensor.untyped_storage()._cdata
        self._release(key, self._era)
        self.live[key] = LiveTensor(tensor.untyped_storage().nbytes(), "host memory", (), "", "")
        self._blocks[key] = 0

    def drop(self, tensor: torch.Tensor) -> None:
        """Free the tensor's storage, which is not read again, although a reference remains."""
        self._release(tensor.untyped_storage()._cdata, self._era)

    def scratch(self, nbytes: int, operation: str) -> None:
        """Allocate and free the bytes that a kernel uses while it runs."""
        if not nbytes:
            return
        block = self.allocator.allocate(nbytes)
        self._raise_peaks(nbytes, operation)
        self.allocator.free(block)

    def join(self, part: torch.Tensor, count: int) -> torch.Tensor:
        """Return a tensor of `count` such parts, which all exist until then: their blocks stay."""
        blocks = [self.allocator.allocate(part.nbytes) for _ in range(1, count)]
        whole = part.new_empty((count, *part.shape[1:]))
        for block in blocks:
            self.allocator.free(block)
        return whole

    def booked_bytes(self, tensors: Iterable[torch.Tensor]) -> int:
        blocks = (self._blocks.get(key) for key in storage_sizes(tensors))
        return sum(self.allocator.size_of(block) for block in blocks if block)

    def new_bytes_since(self, part: LedgerPhase) -> int:
        """Return live bytes that were not there before `part` or, if it has `since`, at its end."""
        return sum(
            live.nbytes
            for key, live in self.live.items()
            if part._before.get(key) is not live and part._left.get(key) is not live
        )

    def _release(self, key: int, era: int) -> None:
        if era != self._era:
            return
        for phase in self._phases:
            if phase._grown:
                phase._at_peak, phase._grown = dict(self.live), False
        if self.live.pop(key, None) is not None:
            self.allocator.free(self._blocks.pop(key))

    def _raise_peaks(self, scratch_bytes: int, operation: str) -> None:
        allocated = self.allocator.allocated_bytes
        for phase in self._phases:
            if allocated > phase.peak_bytes:
                phase.peak_bytes, phase._grown = allocated, True
                phase.scratch_bytes, phase.scratch_operation = scratch_bytes, operation

    @contextmanager
    def phase(
        self, name: str, *, since: LedgerPhase | None = None, largest: int = LARGEST_TENSORS
    ) -> Iterator[LedgerPhase]:
        """Record a phase's peak and `largest` tensors, from the start of `since`; may nest."""
        now = self.allocator.allocated_bytes
        before = since._before if since else dict(self.live)
        phase = LedgerPhase(name, since.start_bytes if since else now, now, _before=before)
        phase._grown = since is not None
        self._phases.append(phase)
        try:
            yield phase
        finally:
            self._phases.remove(phase)
            phase.end_bytes = self.allocator.allocated_bytes
            if since is not None:
                phase._left = dict(self.live)
            at_peak = self.live if phase._grown or phase._at_peak is None else phase._at_peak
            new = [
                live
                for key, live in at_peak.items()
                if phase._before.get(key) is not live and live.nbytes >= _WORTH_NAMING_BYTES
            ]
            phase.largest = tuple(sorted(new, key=lambda live: -live.nbytes)[:largest])
            phase._at_peak = None


# torch keeps workspaces for cuBLAS and cuBLASLt, allocated from its caching allocator, as in
# pytorch's aten/src/ATen/cuda/CublasHandlePool.cpp (before torch 2.9 CUDABlas.cpp has Lt's): one
# for each pair of handle and stream, made by the first matrix product and never freed. For releases
# whose source was not read, pull requests' merge dates decide.
# parseChosenWorkspaceSize: the default is ":4096:2:16:8".
COMMON_BYTES = (4096 * 2 + 16 * 8) * KIB
LARGE_BYTES = 4096 * 8 * KIB
# parseCUDABlasLtWorkspaceSize, per pytorch#73328.
LT_BYTES = 1024 * KIB
# The first torch that uses 32 MiB, by a compute capability's major number: 10 and 12 by
# pytorch#175344, merged in February 2026, 11 by #189312, July 2026.
_LARGE_SINCE = {9: (2, 0), 10: (2, 12), 11: (2, 14), 12: (2, 12)}
# The first torch whose Lt shares cuBLAS's workspace by default (pytorch#175879, March 2026).
_UNIFIED = (2, 12)
# addmm with a bias and scaled products go to cuBLASLt, other products to cuBLAS.
_LT_OPERATIONS = {"addmm", "_addmm_activation", "_scaled_mm"}
_OPERATIONS = {"mm", "bmm", "baddbmm", *_LT_OPERATIONS}

Capability = tuple[int, int]
Version = tuple[int, int]


def cublas_workspace_bytes(
    capability: Capability, torch_version: Version, config: str | None = None
) -> int:
    """Return the bytes of one cuBLAS workspace.

    `config` is CUBLAS_WORKSPACE_CONFIG, such as `:4096:2:16:8`; an invalid one has no effect.
    """
    if pairs := re.findall(r":([0-9]+):([0-9]+)", config or ""):
        return sum(int(size) * int(count) * KIB for size, count in pairs)
    since = _LARGE_SINCE.get(capability[0])
    return LARGE_BYTES if since is not None and torch_version >= since else COMMON_BYTES


def cublaslt_workspace_bytes(torch_version: Version, size_config: str | None = None) -> int:
    """Return the bytes of cuBLASLt's own workspace, 0 if shared; `size_config` is in KiB."""
    if torch_version >= _UNIFIED:
        return 0
    configured = re.match(r"\s*[0-9]+", size_config or "")
    return int(configured[0]) * KIB if configured else LT_BYTES


class Workspaces:
    """Allocates a workspace when the first product needs it."""

    def __init__(
        self,
        allocator: CachingAllocator,
        capability: Capability,
        torch_version: Version,
        environment: Mapping[str, str],
    ) -> None:
        config = environment.get("CUBLAS_WORKSPACE_CONFIG")
        lt_size_config = environment.get("CUBLASLT_WORKSPACE_SIZE")
        self._allocator = allocator
        self._missing_bytes = {
            "cublas": cublas_workspace_bytes(capability, torch_version, config),
            "cublaslt": cublaslt_workspace_bytes(torch_version, lt_size_config),
        }

    def use(self, name: str) -> None:
        """Record that one of aten's operations runs, such as `mm`."""
        # cuBLASLt shares cuBLAS's handle: getCurrentCUDABlasLtHandle also makes its workspace.
        if name in _OPERATIONS:
            self._allocator.allocate(self._missing_bytes.pop("cublas", 0))
        if name in _LT_OPERATIONS:
            self._allocator.allocate(self._missing_bytes.pop("cublaslt", 0))
