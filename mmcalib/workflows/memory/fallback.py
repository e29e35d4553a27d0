"""Memory by formula, where the installed vLLM cannot be rehearsed: rough, and labelled so."""

from __future__ import annotations

from typing import Any, Final

from mmcalib.domain.budget import Budget
from mmcalib.gpus.gpu import Gpu
from mmcalib.releases.constants import GPU_MEMORY_UTILIZATION
from mmcalib.results.memory import Memory
from mmcalib.workflows.memory.cross_check import estimate_bytes
from mmcalib.workflows.proof.startup import Started

# For what no formula has: kernels outside torch, CUDA graphs, buffers, language model and sampler
# of a small batch. From the rehearsals of bundled models, rounded up.
ALLOWANCE_BYTES: Final = 3 << 29


def by_formula(
    gpu: Gpu,
    started: Started | None,
    budget: Budget,
    engine_args: dict[str, Any],
    model_path: str,
    problem: str,
) -> Memory:
    """Weights and KV bytes per token as measured in the engine start, the encoder's peak from the
    config's widths; what is left is the KV cache. Without a start only the reason is known.
    """
    note = f"not rehearsed: {problem}"
    peak = estimate_bytes(budget, model_path)
    if started is None or peak is None:
        return Memory(gpu=gpu.name, note=note)
    weights = started.figures.weights_full_bytes
    share = engine_args.get("gpu_memory_utilization", GPU_MEMORY_UTILIZATION)
    requested = int(share * gpu.total_bytes)
    left = requested - weights - peak - ALLOWANCE_BYTES
    per_token = started.figures.kv_full_bytes_per_token
    return Memory(
        total_bytes=gpu.total_bytes,
        requested_bytes=requested,
        weights_bytes=weights,
        buffers_bytes=ALLOWANCE_BYTES,
        encoder_peak_bytes=peak,
        activation_peak_bytes=peak,
        kv_cache_bytes=left,
        kv_cache_tokens=left // per_token if left > 0 else None,
        kv_bytes_per_token=per_token,
        label="computed",
        labels={"buffers_bytes": "assumed", "total_bytes": "assumed"},
        gpu=gpu.name,
        note=f"by formula, {note}",
    )
