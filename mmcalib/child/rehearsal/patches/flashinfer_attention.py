"""FlashInfer's attention over a paged cache: its plans remember, its runs write to what they get.

vLLM takes it where FlashAttention does not go: an 8-bit KV cache before Hopper, Blackwell.
"""

from __future__ import annotations

from typing import Any

import torch

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
