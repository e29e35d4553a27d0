"""vLLM's compiled operations, by name."""

from __future__ import annotations

MEMORY_ALLOCATOR = "vllm.cumem_allocator"
# Importing one of these would load a CUDA library, or a CPU build's other operations.
EXTENSIONS = (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    "vllm._qutlass_C",
    MEMORY_ALLOCATOR,
)
NAMESPACES = ("_C", "_moe_C", "_C_cache_ops", "_C_custom_ar", "_C_cuda_utils")

# Operations of vLLM 0.32's torch bindings that return nothing, as their schemas say.
_WRITE_ONLY_NAMES = """
apply_repetition_penalties_ batched_moe_align_block_size concat_and_cache_mla convert_fp8
cutlass_fp4_group_mm cutlass_moe_mm cutlass_scaled_fp4_mm cutlass_scaled_mm
cutlass_scaled_mm_azp dispose dynamic_per_token_scaled_fp8_quant dynamic_scaled_fp8_quant
dynamic_scaled_int8_quant fatrelu_and_mul free_shared_buffer fused_add_rms_norm
fused_add_rms_norm_static_fp8_quant fused_qk_norm_rope gelu_and_mul gelu_fast gelu_new
gelu_quick gelu_tanh_and_mul get_cutlass_moe_mm_data gptq_shuffle merge_attn_states
moe_align_block_size moe_permute moe_permute_with_scratch moe_prepare_scatter moe_sum
moe_unpermute mul_and_silu
per_token_group_fp8_quant per_token_group_fp8_quant_packed per_token_group_quant_int8
mxfp4_experts_quant persistent_topk register_buffer register_graph_buffers relu_squared
reshape_and_cache scaled_fp4_experts_quant silu_and_mul_scaled_fp4_experts_quant
reshape_and_cache_flash rms_norm rms_norm_dynamic_per_token_quant rms_norm_per_block_quant
rms_norm_static_fp8_quant rotary_embedding shuffle_rows silu_and_mul
silu_and_mul_per_block_quant silu_and_mul_quant
silu_and_mul_with_clamp static_scaled_fp8_quant static_scaled_int8_quant swap_blocks
swap_blocks_batch swigluoai_and_mul topk_sigmoid topk_softmax topk_softplus_sqrt
vocab_parallel_embedding
"""
WRITE_ONLY = frozenset(_WRITE_ONLY_NAMES.split())
# Where an operation is given its output, which it then returns: that of which argument. The fake of
# 0.32 for Marlin's experts takes fewer arguments than the operation is given.
OUTPUTS = {"moe_wna16_marlin_gemm": 1}
# Questions whose answer is yes in a CUDA build.
YES = ("moe_permute_unpermute_supported",)
