"""FlashAttention without its kernels: the output is allocated, the log-sum-exp too."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from mmcalib.child.rehearsal.device.machine import Machine
from mmcalib.releases.backends import windows_wrapper
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


def install(machine: Machine) -> None:
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
