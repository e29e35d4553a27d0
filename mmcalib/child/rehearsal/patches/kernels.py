"""What vLLM asks of its kernels beside running them."""

from __future__ import annotations

import torch

from mmcalib.child.rehearsal.device.ledger import Ledger
from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import targets

# The least compute capability for which vLLM's CUTLASS kernels exist, as its documentation of
# quantization says (FP8 from Ada, block FP8 and grouped from Hopper, FP4 from Blackwell); not read
# in the kernels' source.
_SUPPORTED_FROM = {
    "cutlass_scaled_mm_supports_fp8": 89,
    "cutlass_scaled_mm_supports_block_fp8": 90,
    "cutlass_group_gemm_supported": 90,
    "cutlass_scaled_mm_supports_fp4": 100,
    "mxfp4_experts_quant_supported": 100,
}


def install(ledger: Ledger, capability: tuple[int, int]) -> None:
    """Answer questions of support, and lend host memory to the device for nothing."""
    number = capability[0] * 10 + capability[1]
    for name, least in _SUPPORTED_FROM.items():
        replace(targets.custom_ops(name), lambda asked, yes=number >= least: yes)

    def device_view(host: torch.Tensor) -> torch.Tensor:
        """Pinned host memory seen from the device: takes nothing there."""
        view = torch.empty_like(host, device="cuda")
        ledger.exempt(view)
        return view

    replace(targets.DEVICE_VIEW, device_view)
    # Last, since it brings much of vLLM along. Launched to be compiled and tuned, which a driver
    # would be asked for.
    replace(targets.WARMUP, lambda worker: None)
