"""DeepGEMM, which CUDA builds of vLLM bring: products that write to what they are given, and the
layouts in which it wants the scales of FP8 weights.

Layouts as DeepGEMM's csrc/apis/layout.hpp has them in `transform_sf_into_required_layout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mmcalib.child.rehearsal.patches.hollow import HollowPackages
from mmcalib.releases import targets

# What a TMA descriptor wants rows aligned to, in bytes.
_TMA_BYTES = 16
_BLOCK = 128
# kLegacyMKAlignmentForContiguousLayout: rows of one expert begin at multiples of it.
_ALIGNMENT_ROWS = 128
_WAY_OUT = "VLLM_USE_DEEP_GEMM=0 does without it"
_WRITING = (
    "fp8_gemm_nt",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
    "fp8_m_grouped_gemm_nt_masked",
)


def install(capability: tuple[int, int], module: Callable[[], str]) -> None:
    """Must come before vLLM looks for it; of releases that bring it."""
    if not targets.DEEP_GEMM_IS_BROUGHT:
        return
    described = {"deep_gemm": _described(capability)}
    HollowPackages(("deep_gemm",), described, module, _WAY_OUT).install()


def _described(capability: tuple[int, int]) -> dict[str, Callable[..., Any]]:
    def required_layout(
        sf: torch.Tensor,
        mn: int,
        k: int,
        recipe: tuple[int, ...] | None = None,
        num_groups: int | None = None,
        is_sfa: bool | None = None,
        disable_ue8m0_cast: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Scales of `mn` rows and `k` columns as this GPU takes them."""
        if sf.dtype != torch.float32:
            return sf
        if capability[0] != 9 and not disable_ue8m0_cast:
            return packed(sf, mn)
        by_block = recipe is not None and recipe[0 if is_sfa else -2] == _BLOCK
        return sf if by_block else aligned(sf)

    return {
        **dict.fromkeys(_WRITING, _nothing),
        "transform_sf_into_required_layout": required_layout,
        "get_mn_major_tma_aligned_tensor": aligned,
        "get_mn_major_tma_aligned_packed_ue8m0_tensor": packed,
        "get_mk_alignment_for_contiguous_layout": lambda: _ALIGNMENT_ROWS,
        **_legacy_alignments(capability),
        "set_num_sms": _nothing,
        "set_pdl": _nothing,
    }


def _legacy_alignments(capability: tuple[int, int]) -> dict[str, Callable[..., Any]]:
    """On the largest Blackwells they follow the number of rows, by a table that was not read."""
    if capability[0] == 10:
        return {}
    return {
        "get_theoretical_mk_alignment_for_contiguous_layout": lambda *rows: _ALIGNMENT_ROWS,
        "set_mk_alignment_for_contiguous_layout": _nothing,
    }


def aligned(sf: torch.Tensor) -> torch.Tensor:
    """Column by column, each a whole number of TMA's units."""
    return _by_column(sf, sf.shape[-2], sf.shape[-1], sf.dtype)


def packed(sf: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """Exponents of four columns in an int32, for each row of the weights: `rows`, or those of `sf`
    where it has one each.
    """
    rows = sf.shape[-2] if rows is None else rows
    return _by_column(sf, rows, -(-sf.shape[-1] // 4), torch.int32)


def _by_column(like: torch.Tensor, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    unit = _TMA_BYTES // dtype.itemsize
    height = -(-rows // unit) * unit
    before = tuple(like.shape[:-2])
    strides = (*(height * columns for _ in before), 1, height)
    return torch.empty_strided((*before, rows, columns), strides, dtype=dtype, device=like.device)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
