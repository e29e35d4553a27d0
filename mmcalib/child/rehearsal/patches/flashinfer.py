"""FlashInfer, which every CUDA build of vLLM brings: its samplers by what they allocate.

The rest of the package is hollow: vLLM finds it, and may choose it, but nothing of it runs.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

_PACKAGES = ("flashinfer", "flashinfer_cubin", "flashinfer_jit_cache")


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


_REAL: dict[str, dict[str, Any]] = {
    "flashinfer.sampling": {
        "top_k_top_p_sampling_from_logits": top_k_top_p_sampling_from_logits,
        "top_p_sampling_from_probs": sampling_from_probs,
        "top_k_sampling_from_probs": sampling_from_probs,
    },
    "flashinfer.gdn_prefill": {"chunk_gated_delta_rule": chunk_gated_delta_rule},
    "flashinfer.jit.core": {"check_cuda_arch": lambda: None},
}


class _Hollow(types.ModuleType):
    """A module in which every public name is a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        submodule = f"{self.__name__}.{name}"
        if submodule in _REAL or any(known.startswith(f"{submodule}.") for known in _REAL):
            return importlib.import_module(submodule)
        made = type(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, made)
        return made


class _Finder:
    """Finds every module of the packages as a hollow one, before the real ones are looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in _PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Hollow(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(_REAL.get(module.__name__, {}))
        module.__dict__.setdefault("__version__", "0.0.0")


def install() -> None:
    """Must come before vLLM looks for the package."""
    sys.meta_path.insert(0, _Finder())
