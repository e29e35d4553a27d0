"""What a start takes outside torch's allocator after vLLM's first look: an allowance."""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20
# Public vLLM startup logs on one GPU show 0.07 to 0.16 GiB of "non-torch memory" (llava-v1.6 on
# 0.10.2, gemma-3-4b in vLLM PR 21489, H100 in PR 12126): kernels that are loaded at first use.
ONE_RANK_BYTES: Final = 110 * MIB
# Two ranks show 0.33 GiB (vllm#14452): NCCL's buffers beside it.
NCCL_BYTES: Final = 230 * MIB


def non_torch_bytes(ranks: int) -> int:
    """Bytes per GPU of a group of so many ranks."""
    return ONE_RANK_BYTES + (NCCL_BYTES if ranks > 1 else 0)
