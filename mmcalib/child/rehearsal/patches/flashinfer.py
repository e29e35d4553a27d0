"""FlashInfer, which every CUDA build of vLLM brings: samplers, attention and products by what they
allocate.

The rest of the package is hollow: vLLM finds it, and may choose it, but what it then calls is
refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mmcalib.child.rehearsal.patches import flashinfer_attention
from mmcalib.child.rehearsal.patches.flashinfer_products import Products
from mmcalib.child.rehearsal.patches.hollow import Described, HollowPackages

_PACKAGES = ("flashinfer", "flashinfer_cubin", "flashinfer_jit_cache")
WAY_OUT = "another --linear-backend, --moe-backend or --attention-backend may do without it"


def top_k_top_p_sampling_from_logits(
    logits: torch.Tensor, top_k: Any, top_p: Any, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Masks the logits by top-k, makes probabilities of them, samples by top-p.

    As flashinfer/sampling.py does: one masked copy in float32, one of probabilities.
    """
    masked = torch.empty_like(logits, dtype=torch.float32)
    return _picked(torch.empty_like(masked))


def sampling_from_probs(probs: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Samples by rejection, without sorting: takes only its result."""
    return _picked(probs)


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *args: Any,
    initial_state: torch.Tensor,
    output_final_state: bool = False,
    **kwargs: Any,
) -> Any:
    """A prompt through a recurrent layer: what comes out of it, and the state of each request."""
    heads = max(q.shape[1], v.shape[1])
    output = torch.empty(q.shape[0], heads, v.shape[2], dtype=q.dtype, device=q.device)
    if not output_final_state:
        return output
    return output, torch.empty_like(initial_state, dtype=torch.float32)


def _picked(scores: torch.Tensor) -> torch.Tensor:
    return torch.empty(scores.shape[0], dtype=torch.int32, device=scores.device)


_REAL: Described = {
    "flashinfer.sampling": {
        "top_k_top_p_sampling_from_logits": top_k_top_p_sampling_from_logits,
        "top_p_sampling_from_probs": sampling_from_probs,
        "top_k_sampling_from_probs": sampling_from_probs,
    },
    "flashinfer.gdn_prefill": {"chunk_gated_delta_rule": chunk_gated_delta_rule},
    "flashinfer.jit.core": {"check_cuda_arch": lambda: None},
}


def install(products: Products, module: Callable[[], str]) -> None:
    """Must come before vLLM looks for the package. `module` says which part of the model is at
    work.
    """
    described: dict[str, dict[str, Any]] = {}
    for part in (_REAL, flashinfer_attention.REAL, products.real()):
        for name, content in part.items():
            described.setdefault(name, {}).update(content)
    HollowPackages(_PACKAGES, described, module, WAY_OUT).install()
