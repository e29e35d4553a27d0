"""The workspaces that torch keeps for cuBLAS and cuBLASLt, out of its caching allocator.

pytorch's aten/src/ATen/cuda/CublasHandlePool.cpp (before torch 2.9 CUDABlas.cpp has Lt's): one for
each pair of handle and stream, made by the first matrix product and never given back. Of releases
between the sources that were read, pull requests' merge dates decide.
"""

from __future__ import annotations

import re
from typing import Protocol

from mmcalib.child.rehearsal.device.allocator import CachingAllocator
from mmcalib.text import KIB

# parseChosenWorkspaceSize: ":4096:2:16:8" where nothing else is said.
COMMON_BYTES = (4096 * 2 + 16 * 8) * KIB
LARGE_BYTES = 4096 * 8 * KIB
# parseCUDABlasLtWorkspaceSize, per pytorch#73328.
LT_BYTES = 1024 * KIB
# The first torch that gives 32 MiB to a compute capability's major number: 10 and 12 by
# pytorch#175344, merged in February 2026, 11 by #189312, July 2026.
_LARGE_SINCE = {9: (2, 0), 10: (2, 12), 11: (2, 14), 12: (2, 12)}
# The first torch whose Lt uses the workspace of cuBLAS without being told to (pytorch#175879, March
# 2026; #168175 meant to, and left the lookup as it was).
_UNIFIED = (2, 12)
# addmm with a bias and scaled products go to cuBLASLt, other products to cuBLAS.
_LT_OPERATIONS = {"addmm", "_addmm_activation", "_scaled_mm"}
_CUBLAS_OPERATIONS = {"mm", "bmm", "baddbmm"}

Capability = tuple[int, int]
Version = tuple[int, int]


def parse_workspace_config(text: str) -> int | None:
    """Bytes that a CUBLAS_WORKSPACE_CONFIG such as `:4096:2:16:8` asks for; None if unreadable.

    Torch then warns and takes its default.
    """
    found = re.findall(r":([0-9]+):([0-9]+)", text)
    return sum(int(size) * int(count) * KIB for size, count in found) if found else None


def cublas_workspace_bytes(
    capability: Capability, torch_version: Version, config: str | None = None
) -> int:
    """Bytes of one cuBLAS workspace; `config` is CUBLAS_WORKSPACE_CONFIG, None where unset."""
    asked = None if config is None else parse_workspace_config(config)
    if asked is not None:
        return asked
    since = _LARGE_SINCE.get(capability[0])
    return LARGE_BYTES if since is not None and torch_version >= since else COMMON_BYTES


def cublaslt_workspace_bytes(torch_version: Version, size_config: str | None = None) -> int:
    """Bytes of one workspace of cuBLASLt's own; 0 where it uses that of cuBLAS.

    `size_config` is CUBLASLT_WORKSPACE_SIZE in KiB, None where unset.
    """
    if torch_version >= _UNIFIED:
        return 0
    asked = re.match(r"\s*[0-9]+", size_config or "")
    return int(asked[0]) * KIB if asked else LT_BYTES


class Books(Protocol):
    """Whoever holds the allocator that workspaces come from."""

    allocator: CachingAllocator


class Workspaces:
    """Takes a workspace from the allocator when the first product on a stream needs it."""

    def __init__(
        self,
        books: Books,
        capability: Capability | None,
        torch_version: Version = (2, 13),
        *,
        config: str | None = None,
        lt_size_config: str | None = None,
    ) -> None:
        """`config` and `lt_size_config` are the environment's, None where unset."""
        self._books = books
        self._lt_is_its_own = torch_version < _UNIFIED
        self._bytes = {"cublas": 0, "cublaslt": 0}
        if capability is not None:
            self._bytes["cublas"] = cublas_workspace_bytes(capability, torch_version, config)
            self._bytes["cublaslt"] = cublaslt_workspace_bytes(torch_version, lt_size_config)
        self._held: dict[tuple[str, int], int] = {}

    def use(self, operation: object, stream: int = 0) -> None:
        """Note that an aten operation (by name, or `aten.mm.default`) runs on a stream."""
        name = str(operation).removeprefix("aten.").removeprefix("aten::").partition(".")[0]
        if name not in _LT_OPERATIONS | _CUBLAS_OPERATIONS:
            return
        # cuBLASLt's handle is cuBLAS's: getCurrentCUDABlasLtHandle makes its workspace as well.
        self._take("cublas", stream)
        if name in _LT_OPERATIONS and self._lt_is_its_own:
            self._take("cublaslt", stream)

    def _take(self, library: str, stream: int) -> None:
        if (library, stream) not in self._held:
            block = self._books.allocator.allocate(self._bytes[library])
            self._held[library, stream] = block

    def clear(self) -> None:
        """Give all back, as torch._C._cuda_clearCublasWorkspaces does."""
        for block in self._held.values():
            self._books.allocator.free(block)
        self._held.clear()
