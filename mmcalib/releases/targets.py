"""Functions of vLLM and torch that a rehearsal replaces; a missing one raises TargetMissing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from mmcalib.releases.release import (
    TORCH_2_11,
    TRITON_3_6,
    VLLM_0_13,
    VLLM_0_15,
    VLLM_0_16,
    VLLM_0_20,
    VLLM_0_24,
    VLLM_0_32,
    VLLM_0_33,
    Release,
    TargetMissing,
)


@dataclass(frozen=True, slots=True)
class Target:
    """A dotted name. It may be missing before `since`, and in any build if `optional`."""

    name: str
    since: Release | None = None
    optional: bool = False


def find(target: str | Target) -> tuple[Any, str] | None:
    """Return a target's holder and last name; None if it may be missing, else TargetMissing."""
    if isinstance(target, str):
        target = Target(target)
    parts = target.name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            holder: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[cut:-1]:
                holder = getattr(holder, part)
            getattr(holder, parts[-1])
        except AttributeError:
            break
        return holder, parts[-1]
    if target.optional or (target.since is not None and not target.since.is_reached):
        return None
    raise TargetMissing(target.name)


def replace(target: str | Target, value: Any) -> Any:
    """Replace the target with `value` and return the original; None if `find` returns None."""
    if (place := find(target)) is None:
        return None
    original = getattr(*place)
    setattr(*place, value)
    return original


def accelerator(name: str) -> Target:
    return Target(f"torch.accelerator.{name}", TORCH_2_11)


def triton(name: str) -> Target:
    return Target(f"triton.runtime.{name}", TRITON_3_6)


def custom_ops(name: str) -> Target:
    """Return a function that tells vLLM which kernels work."""
    return Target(f"vllm._custom_ops.{name}", VLLM_0_32)


# The platform. The first function recognizes a CPU wheel by its version.
VERSION_CHECK = Target("vllm.platforms.vllm_version_matches_substr")
PLATFORM = Target("vllm.platforms._current_platform")
SYSTEM_MEMORY = Target("vllm.utils.mem_utils.psutil")

# Compilation.
_WRAPPER = "WithNoGuardsWrapper" if VLLM_0_13.is_reached else "WrapperWithCustomDispatcher"
COMPILED = Target(f"vllm.compilation.wrapper.TorchCompile{_WRAPPER}.__init__")
MAYBE_COMPILE = Target("vllm.model_executor.custom_op.CustomOp.maybe_compile", VLLM_0_15)
COMPILER_START = Target("vllm.compilation.compiler_interface.trigger_inductor_lazy_init", VLLM_0_32)

# Loading.
_LOADER = "vllm.model_executor.model_loader"
_FILL = "initialize_single_dummy_weight" if VLLM_0_20.is_reached else "initialize_dummy_weights"
# Its definition, and the loader's own reference; releases differ in which one they call.
DUMMY_WEIGHTS = tuple(
    Target(f"{_LOADER}.{module}.{_FILL}") for module in ("weight_utils", "dummy_loader")
)
LOAD_MODEL = Target(f"{_LOADER}.base_loader.BaseModelLoader.load_model")
INSPECTION = Target("vllm.model_executor.models.registry._run_in_subprocess")
RELOADING = Target(f"{_LOADER}.utils.record_metadata_for_reloading", VLLM_0_32)

# GPTQ finds its layers in the weights; before 0.32 it finds no layers in a folder without weights.
_QUANTIZATION = "vllm.model_executor.layers.quantization"
GPTQ_LAYER = Target(f"{_QUANTIZATION}.utils.gptq_utils.is_layer_gptq_quantized", VLLM_0_24)

# Parameters: quantized layers read from them how they are packed.
FAKES_PARAMETERS = VLLM_0_24.is_reached
PARAMETER = Target("vllm.model_executor.parameter.BasevLLMParameter.__new__")
SHALLOW_COPY = Target(
    "vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel._shallow_copy", VLLM_0_33
)
MATERIALIZE = Target(f"{_LOADER}.reload.meta.materialize_meta_tensor")

# Attention: vLLM has its own operation for an encoder's windows.
HAS_WINDOW_OPERATION = VLLM_0_32.is_reached
WINDOWS = Target("vllm.v1.attention.ops.vit_attn_wrappers.torch_sdpa_wrapper")
FLASH_ATTENTION = "vllm.vllm_flash_attn"

# Kernels.
_KIND = "accelerator" if VLLM_0_16.is_reached else "cuda"
_UTILS = "vllm.utils.torch_utils" if VLLM_0_13.is_reached else "vllm.utils"
DEVICE_VIEW = Target(f"{_UTILS}.get_{_KIND}_view_from_cpu_tensor")
WARMUP = Target("vllm.model_executor.warmup.kernel_warmup.kernel_warmup", VLLM_0_32)

# Functions, at their call sites, that pack experts' weights one expert at a time.
_ORACLE = "vllm.model_executor.layers.fused_moe.oracle"
EXPERT_PACKING = (
    Target(f"{_ORACLE}.nvfp4.prepare_nvfp4_moe_layer_for_marlin", VLLM_0_32),
    Target(f"{_ORACLE}.fp8.prepare_fp8_moe_layer_for_marlin", VLLM_0_32),
    Target(f"{_ORACLE}.int_wna16._process_weights_marlin", optional=True),
    Target(f"{_ORACLE}.int_wna16._process_awq_weights_marlin", optional=True),
    Target(f"{_QUANTIZATION}.utils.marlin_utils_fp4.prepare_moe_mxfp4_layer_for_marlin", VLLM_0_32),
    Target(f"{_QUANTIZATION}.utils.marlin_utils_fp8.prepare_mxfp8_moe_layer_for_marlin", VLLM_0_32),
    Target(
        f"{_QUANTIZATION}.utils.flashinfer_fp4_moe.prepare_static_weights_for_trtllm_fp4_moe",
        VLLM_0_32,
    ),
)

# A product for routers, in a module that cannot be imported without CUTLASS's Python package.
ROUTER_PRODUCT = "vllm.model_executor.layers.fused_moe.router.bf16x3_router_gemm_cutedsl"

# A kernel package in CUDA builds; it asks the driver for the GPU.
HUMMING_DEVICE = Target("humming.device._get_device_info_extension", optional=True)

# CUDA wheels contain it in `vllm.third_party`.
HAS_DEEP_GEMM = VLLM_0_24.is_reached

# Dummy media.
_BUILDERS = "processing.dummy_inputs" if VLLM_0_15.is_reached else "profiling"
DUMMY_PIXELS = Target(f"vllm.multimodal.{_BUILDERS}.np")
HASH = Target("vllm.multimodal.hasher.MultiModalHasher.hash_kwargs")

# Groups of processes.
_STATE = "vllm.distributed.parallel_state"
_COMMUNICATORS = "vllm.distributed.device_communicators"
SAME_NODE = Target(f"{_STATE}.in_the_same_node_as")
NODE_COUNT = Target(f"{_STATE}._node_count")
BARRIER = Target(f"{_STATE}.GroupCoordinator.barrier")
DESTROY = Target(f"{_COMMUNICATORS}.cuda_communicator.CudaCommunicator.destroy", VLLM_0_15)
FLASHINFER_REDUCES = Target(f"{_COMMUNICATORS}.flashinfer_all_reduce.fi_ar_available", VLLM_0_32)
NCCL = Target(f"{_COMMUNICATORS}.pynccl.NCCLLibrary")
MESSAGE_QUEUE = Target(f"{_COMMUNICATORS}.shm_broadcast.MessageQueue.create_from_process_group")

MEMORY_ALLOCATOR = "vllm.cumem_allocator"
# Importing one of these would load a CUDA library, or the operations of a CPU build.
EXTENSIONS = (
    *("vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm._moe_C_stable_libtorch"),
    *("vllm._qutlass_C", MEMORY_ALLOCATOR),
)
NAMESPACES = ("_C", "_moe_C", "_C_cache_ops", "_C_custom_ar", "_C_cuda_utils")

# Operations of vLLM 0.32's torch bindings that return nothing, by their schemas.
_WRITE_ONLY_NAMES = """
apply_repetition_penalties_ batched_moe_align_block_size concat_and_cache_mla convert_fp8
cutlass_fp4_group_mm cutlass_moe_mm cutlass_mxfp4_group_mm cutlass_scaled_fp4_mm cutlass_scaled_mm
cutlass_scaled_mm_azp silu_and_mul_mxfp4_experts_quant
dispose dynamic_per_token_scaled_fp8_quant dynamic_scaled_fp8_quant dynamic_scaled_int8_quant
fatrelu_and_mul free_shared_buffer fused_add_rms_norm fused_add_rms_norm_static_fp8_quant
fused_minimax_m3_qknorm_rope_kv_insert
fused_qk_norm_rope gelu_and_mul gelu_fast gelu_new gelu_quick gelu_tanh_and_mul
get_cutlass_moe_mm_data gptq_shuffle merge_attn_states moe_align_block_size moe_permute
moe_permute_with_scratch moe_prepare_scatter moe_sum moe_unpermute mul_and_silu
per_token_group_fp8_quant per_token_group_fp8_quant_packed per_token_group_quant_int8
mxfp4_experts_quant persistent_topk register_buffer register_graph_buffers relu_squared
reshape_and_cache scaled_fp4_experts_quant silu_and_mul_scaled_fp4_experts_quant
reshape_and_cache_flash rms_norm rms_norm_dynamic_per_token_quant rms_norm_per_block_quant
rms_norm_static_fp8_quant rotary_embedding shuffle_rows silu_and_mul silu_and_mul_per_block_quant
silu_and_mul_quant silu_and_mul_with_clamp static_scaled_fp8_quant static_scaled_int8_quant
swap_blocks swap_blocks_batch swigluoai_and_mul topk_sigmoid topk_softmax topk_softplus_sqrt
vocab_parallel_embedding
"""
WRITE_ONLY = frozenset(_WRITE_ONLY_NAMES.split())
# Index of the argument that is an operation's output; 0.32's fake takes fewer arguments.
OUTPUTS = {"moe_wna16_marlin_gemm": 1}
