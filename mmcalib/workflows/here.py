"""What of a server's configuration can be had on the machine that calibrates or validates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.gpus import present
from mmcalib.gpus.gpu import Gpu

# Without a GPU these cannot be had, and neither tokens nor encoder budget depend on them.
GPU_ONLY = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "distributed_executor_backend",
    "enable_expert_parallel",
    "mm_encoder_tp_mode",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
    "quantization",
    "cpu_offload_gb",
    "attention_backend",
    "mm_encoder_attn_backend",
    "device_ids",
    "load_format",
    "mm_processor_device",
)


def here(engine_args: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The arguments that can be had on this machine, whose device is `cpu` or another word of
    vLLM's.
    """
    left_out = GPU_ONLY if device == "cpu" else ()
    return {name: value for name, value in engine_args.items() if name not in left_out}


def serves(device: str, gpu: Gpu | None) -> bool:
    """Whether the engine that starts on this machine's device starts on the GPU that will serve, as
    far as one is named.
    """
    if device == "cpu":
        return False
    return gpu is None or not present.has_gpu() or gpu.torch_name == present.present().torch_name
