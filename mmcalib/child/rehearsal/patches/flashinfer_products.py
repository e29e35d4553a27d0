"""FlashInfer's products of quantised weights, and the quantising before them: results by shape,
and the workspaces that each kind of product keeps.

As FlashInfer 0.6.16 has them: gemm/gemm_base.py and quantization/.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# gemm_base.py, DEFAULT_WORKSPACE_SIZE; `_get_cache_buf` of utils.py keeps one for each name.
WORKSPACE_BYTES = 32 << 20


class Products:
    """The functions, and the workspaces that they have taken so far."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def clear(self) -> None:
        """A process in which none has run yet."""
        self._kept.clear()

    def _keep(self, name: str, device: torch.device) -> None:
        if name not in self._kept:
            self._kept[name] = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)

    def mm_fp4(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_descale: torch.Tensor,
        b_descale: torch.Tensor,
        alpha: torch.Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        out: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """(m, k/2) by (k/2, n), two numbers to a byte."""
        self._keep("mm_fp4_workspace", a.device)
        return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype) if out is None else out

    def mm_mxfp8(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_descale: torch.Tensor,
        b_descale: torch.Tensor,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        **kwargs: Any,
    ) -> torch.Tensor:
        """(m, k) by (k, n)."""
        self._keep("mm_mxfp8_workspace", a.device)
        return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype) if out is None else out

    def bmm_fp8(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_scale: torch.Tensor,
        b_scale: torch.Tensor,
        dtype: torch.dtype,
        out: torch.Tensor | None = None,
        backend: str = "cublas",
    ) -> torch.Tensor:
        """(batch, m, k) by (batch, k, n)."""
        self._keep("bmm_fp8_workspace", a.device)
        shape = (a.shape[0], a.shape[1], b.shape[2])
        return a.new_empty(shape, dtype=dtype) if out is None else out

    def blockscale_product(
        self,
        input: torch.Tensor,  # noqa: A002 - vLLM names it
        weight: torch.Tensor,
        input_scale: torch.Tensor | None = None,
        weight_scale: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """(m, k) by (n, k): for few rows on Hopper alone."""
        shape, dtype = (input.shape[0], weight.shape[0]), out_dtype or torch.bfloat16
        return input.new_empty(shape, dtype=dtype) if out is None else out

    def nvfp4_quantize(self, a: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Two numbers to a byte, and a scale for each 16."""
        rows, width = a.numel() // a.shape[-1], a.shape[-1]
        return _packed(a, rows, width // 2), _scales(a, rows, width // 16)

    def mxfp4_quantize(self, a: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Two numbers to a byte, and a scale for each 32."""
        rows, width = a.numel() // a.shape[-1], a.shape[-1]
        return _packed(a, rows, width // 2), _scales(a, rows, width // 32)

    def mxfp8_quantize(
        self, a: torch.Tensor, is_sf_swizzled_layout: bool = True, *args: Any, **kwargs: Any
    ) -> Any:
        """A byte for each number, and in one row a scale for each 32."""
        rows, width = a.numel() // a.shape[-1], a.shape[-1]
        scales = _scales(a, rows, width // 32)
        if not is_sf_swizzled_layout:
            scales = a.new_empty((rows, width // 32), dtype=torch.uint8)
        return a.new_empty(a.shape, dtype=torch.float8_e4m3fn), scales.flatten()

    def real(self) -> dict[str, dict[str, Callable[..., Any]]]:
        """The functions by the modules that have them."""
        products: dict[str, Callable[..., Any]] = {
            "mm_fp4": self.mm_fp4,
            "mm_mxfp8": self.mm_mxfp8,
            "bmm_fp8": self.bmm_fp8,
        }
        quantising: dict[str, Callable[..., Any]] = {
            "fp4_quantize": self.nvfp4_quantize,
            "nvfp4_quantize": self.nvfp4_quantize,
            "mxfp4_quantize": self.mxfp4_quantize,
            "mxfp8_quantize": self.mxfp8_quantize,
        }
        blockscale = {"fp8_blockscale_gemm_sm90": self.blockscale_product}
        return {
            "flashinfer": {**products, **quantising},
            "flashinfer.gemm": {**products, **blockscale},
        }


def _packed(like: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    return like.new_empty((rows, width), dtype=torch.uint8)


def _scales(like: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """As tensor cores take them: padded to tiles of 128 by 4."""
    return like.new_empty((-(-rows // 128) * 128, -(-width // 4) * 4), dtype=torch.uint8)
