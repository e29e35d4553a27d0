"""FlashAttention and FlashInfer attention.

FlashInfer's attention over a paged cache: its plans remember, its runs write to what they get.

vLLM takes it where FlashAttention does not go: an 8-bit KV cache before Hopper, Blackwell.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from mmcalib.child.rehearsal.ledger import Machine
from mmcalib.releases.models import windows_wrapper
from mmcalib.releases.targets import FLASH_ATTENTION as PACKAGE

_libraries: list[torch.library.Library] = []


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *args: Any,
    out: torch.Tensor | None = None,
    return_softmax_lse: bool = False,
    **kwargs: Any,
) -> Any:
    """Output like `q` (head size of `v`), and float32 log-sum-exp of (heads, tokens)."""
    if out is None:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    return (out, lse) if return_softmax_lse else out


def apply_rotary_emb(
    x: torch.Tensor, cos: Any, sin: Any, *args: Any, inplace: bool = False, **kwargs: Any
) -> torch.Tensor:
    """The Triton rotary kernel: one output of the input's size, or none in place."""
    return x if inplace else torch.empty_like(x)


def windows_by_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """vLLM's loop over an encoder's windows: their outputs, and all of them in one tensor.

    Torch's memory-efficient kernel runs where flash does not: neither writes scores out. The loop
    itself would go through some hundred thousand operations.
    """
    windows = torch.empty_like(q, memory_format=torch.contiguous_format)
    return windows if cu_seqlens is None else torch.empty_like(windows)


def install_windows() -> None:
    """Must come when vLLM's own operations can be imported."""
    assert windows_wrapper()
    library = torch.library.Library("vllm", "FRAGMENT")
    library.impl("torch_sdpa_wrapper", windows_by_sdpa, "CUDA", allow_override=True)
    # Kept alive: the implementation goes when the library object does.
    _libraries.append(library)


def install_attention(machine: Machine) -> None:
    """Put modules of these names in place, before vLLM's attention backends are imported."""
    supported = {
        2: machine.capability >= (8, 0),
        3: machine.capability[0] == 9,
        4: machine.capability[0] == 10,
    }
    names: dict[str, Any] = {
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "get_scheduler_metadata": lambda *args, **kwargs: None,
        "compile_flash_attn_varlen_func_from_specs": lambda *args, **kwargs: None,
        "fa_version_unsupported_reason": lambda version, *args: (
            None if supported.get(version) else f"not on compute capability {machine.capability}"
        ),
        "is_fa_version_supported": lambda version, *args: supported.get(version, False),
        "FA2_AVAILABLE": supported[2],
        "FA3_AVAILABLE": supported[3],
        "FA4_AVAILABLE": supported[4],
    }
    interface = _module(f"{PACKAGE}.flash_attn_interface", names)
    _module(PACKAGE, {**names, "flash_attn_interface": interface})
    _module(f"{PACKAGE}.layers", {})
    _module(f"{PACKAGE}.layers.rotary", {"apply_rotary_emb": apply_rotary_emb})
    _module(f"{PACKAGE}.ops", {})
    _module(f"{PACKAGE}.ops.triton", {})
    _module(f"{PACKAGE}.ops.triton.rotary", {"apply_rotary": apply_rotary_emb})


def _module(name: str, content: dict[str, Any]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(content)
    sys.modules[name] = module
    return module


# FlashInfer 0.6.16, flashinfer/prefill.py and decode.py: `_int_workspace_buffer` of each wrapper.
_INT_WORKSPACE_BYTES = 8 << 20


class PagedAttention:
    """A wrapper for prefill or decode; a backend reads back what it planned with."""

    # So each step is planned as a whole, as the first always is.
    is_cuda_graph_enabled = False

    def __init__(self, workspace: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self._workspace = workspace
        self._int_workspace = torch.empty(
            _INT_WORKSPACE_BYTES, dtype=torch.uint8, device=workspace.device
        )

    def plan(
        self,
        *args: Any,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        **kwargs: Any,
    ) -> None:
        self._causal, self._sm_scale, self._window_left = causal, sm_scale, window_left
        self._logits_soft_cap = logits_soft_cap or 0.0

    def run(
        self,
        q: torch.Tensor,
        *args: Any,
        out: torch.Tensor | None = None,
        return_lse: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Output like `q`, and float32 log-sum-exp of (tokens, heads)."""
        if out is None:
            out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32) if return_lse else None
        return (out, lse) if return_lse else out


def fast_decode_plan(wrapper: PagedAttention, *args: Any, **kwargs: Any) -> None:
    wrapper.plan(*args, **kwargs)


def get_seq_lens(indptr: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Tokens of each request: whole pages but one, and what is on the last (flashinfer/page.py)."""
    pages = indptr[1:] - indptr[:-1]
    return torch.clamp(pages - 1, min=0) * page_size + last_page_len


def run_into(query: torch.Tensor, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """TensorRT-LLM's kernels and XQA, a function each for prefill and decode."""
    return torch.empty_like(query) if out is None else out


_WRAPPERS = dict.fromkeys(
    (
        "BatchPrefillWithPagedKVCacheWrapper",
        "BatchPrefillWithRaggedKVCacheWrapper",
        "BatchDecodeWithPagedKVCacheWrapper",
    ),
    PagedAttention,
)


def get_device_sm_count(device: torch.device) -> int:
    """Of the imaginary GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def get_trtllm_gen_multi_ctas_kv_counter_bytes(
    batch_size: int, num_qo_heads: int, sm_count: int
) -> int:
    """Counters of four bytes, as many as heads of a batch, in eights (flashinfer/utils.py)."""
    return -(-max(batch_size * num_qo_heads, sm_count) // 8) * 8 * 4


REAL: dict[str, dict[str, Any]] = {
    "flashinfer": {**_WRAPPERS, "get_seq_lens": get_seq_lens},
    "flashinfer.decode": {
        **_WRAPPERS,
        "fast_decode_plan": fast_decode_plan,
        "trtllm_batch_decode_with_kv_cache": run_into,
        "xqa_batch_decode_with_kv_cache": run_into,
    },
    "flashinfer.prefill": {**_WRAPPERS, "trtllm_batch_context_with_kv_cache": run_into},
    "flashinfer.utils": {
        "get_device_sm_count": get_device_sm_count,
        "get_trtllm_gen_multi_ctas_kv_counter_bytes": get_trtllm_gen_multi_ctas_kv_counter_bytes,
    },
}
