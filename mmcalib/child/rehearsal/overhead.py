"""What a start takes outside torch's allocator after vLLM's first look: an allowance."""

from __future__ import annotations

from typing import Final

from mmcalib.text import MIB

# The median of eleven public startup logs on one GPU, 0.02 to 0.26 GiB: kernels that are loaded at
# first use (benchmarks/memory_allowances.toml has them all).
ONE_RANK_BYTES: Final = 72 * MIB
# Two ranks show 0.33 GiB (vllm#14452): NCCL's buffers too, where vLLM looks before NCCL starts.
NCCL_BYTES: Final = 230 * MIB


def non_torch_bytes(ranks: int, *, counts_nccl: bool) -> int:
    """Bytes per GPU of a group of so many ranks; `counts_nccl` if vLLM looks before NCCL starts."""
    return ONE_RANK_BYTES + (NCCL_BYTES if ranks > 1 and counts_nccl else 0)
