"""What a startup counts of a GPU's memory."""

from __future__ import annotations

from typing import Any

from mmcalib.releases.release import VLLM_0_10, VLLM_0_11


def requested_bytes(worker: Any, total_bytes: int) -> int:
    """The share of the GPU that the engine may take, as the worker rounds it."""
    if VLLM_0_10.reached:
        return int(worker.requested_memory)
    return int(total_bytes * worker.cache_config.gpu_memory_utilization)


def given_kv_bytes(config: Any) -> int | None:
    """A size of the KV cache that the user gave; None where there is none, or no such option."""
    return getattr(config.cache_config, "kv_cache_memory_bytes", None)


def counts_context() -> bool:
    """Whether everything that is taken on the GPU counts, the CUDA context as well: before 0.10."""
    return not VLLM_0_10.reached


def counts_nccl() -> bool:
    """Whether NCCL starts after vLLM's first look at the memory, and so counts as used: before
    0.11. Later it starts first, and only what is free may shrink by it.
    """
    return not VLLM_0_11.reached
