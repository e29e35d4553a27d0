"""vLLM's compiled CUDA operations, of which only their results' shapes are needed.

Those with results get them from vLLM's own fake implementations; those that write into tensors
they are given do nothing. Any other is refused by name.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from mmcalib.child.rehearsal.device.errors import NoFakeImplementation
from mmcalib.child.rehearsal.patches.patching import replace

# Importing one of these would load a CUDA library, or a CPU build's other operations.
EXTENSIONS = (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    "vllm._qutlass_C",
    "vllm.cumem_allocator",
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
moe_align_block_size moe_permute moe_prepare_scatter moe_sum moe_unpermute mul_and_silu
per_token_group_fp8_quant per_token_group_fp8_quant_packed per_token_group_quant_int8
persistent_topk register_buffer register_graph_buffers relu_squared reshape_and_cache
reshape_and_cache_flash rms_norm rms_norm_dynamic_per_token_quant rms_norm_per_block_quant
rms_norm_static_fp8_quant rotary_embedding shuffle_rows silu_and_mul silu_and_mul_quant
silu_and_mul_with_clamp static_scaled_fp8_quant static_scaled_int8_quant swap_blocks
swap_blocks_batch swigluoai_and_mul topk_sigmoid topk_softmax topk_softplus_sqrt
vocab_parallel_embedding
"""
_WRITE_ONLY = frozenset(_WRITE_ONLY_NAMES.split())
# Questions to the compiled kernels, answered from the imaginary GPU where it matters.
_MAX_SHARED_MEMORY_BYTES = 227 << 10


class Operation:
    """One compiled operation under any of its overloads."""

    def __init__(self, name: str, module: Callable[[], str]) -> None:
        self.name = name
        self.fake: Callable[..., Any] | None = None
        self._module = module
        self.default = self.out = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fake is not None:
            return self.fake(*args, **kwargs)
        if self.name.partition("::")[2] in _WRITE_ONLY:
            return None
        raise NoFakeImplementation(self.name, self._module(), "vLLM describes no result for it")


class _Namespace:
    """`torch.ops._C` and its like: every name is an operation."""

    def __init__(self, name: str, module: Callable[[], str]) -> None:
        self._name, self._module = name, module

    def __getattr__(self, name: str) -> Operation:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Operation(f"{self._name}::{name}", self._module)
        setattr(self, name, made)
        return made


def install(module: Callable[[], str]) -> None:
    """Take the place of the compiled extensions. `module` says which part of the model is at work.

    Must come before vLLM registers its fake implementations.
    """
    for extension in EXTENSIONS:
        sys.modules[extension] = types.ModuleType(extension)
    # Imported by name where vLLM's sleep mode is, which a rehearsal never is in.
    for name in ("init_module", "python_create_and_map", "python_unmap_and_release"):
        setattr(sys.modules["vllm.cumem_allocator"], name, None)
    spaces = {name: _Namespace(name, module) for name in NAMESPACES}
    for name, space in spaces.items():
        setattr(torch.ops, name, space)
    _answers(spaces["_C_cuda_utils"])
    register = torch.library.register_fake

    def register_fake(op: Any, func: Any = None, /, **kwargs: Any) -> Any:
        space, _, name = op.partition("::") if isinstance(op, str) else ("", "", "")
        if space not in spaces:
            return register(op, func, **kwargs)
        operation = getattr(spaces[space], name.removesuffix(".default"))

        def keep(implementation: Any) -> Any:
            operation.fake = implementation
            return implementation

        return keep if func is None else keep(func)

    replace("torch.library.register_fake", register_fake)


def _answers(space: _Namespace) -> None:
    answer = space.get_max_shared_memory_per_block_device_attribute
    answer.fake = lambda device: _MAX_SHARED_MEMORY_BYTES
