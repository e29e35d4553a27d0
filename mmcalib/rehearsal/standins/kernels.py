"""What vLLM asks of its kernels beside running them."""

from __future__ import annotations

import torch

from mmcalib.rehearsal.device.ledger import Ledger
from mmcalib.rehearsal.release import VLLM_0_15, VLLM_0_23
from mmcalib.rehearsal.standins.seam import replace


def install(ledger: Ledger) -> None:
    """Answer questions of support, and lend host memory to the device for nothing."""
    import vllm._custom_ops as ops

    # Support is a question to the compiled CUTLASS kernels; the plain path is always there.
    for name in dir(ops):
        if "supports" in name and callable(getattr(ops, name)):
            setattr(ops, name, lambda *args, **kwargs: False)

    def device_view(host: torch.Tensor) -> torch.Tensor:
        """Pinned host memory seen from the device: takes nothing there."""
        view = torch.empty_like(host, device="cuda")
        ledger.exempt(view)
        return view

    replace(_device_view(), device_view)


def _device_view() -> str:
    if VLLM_0_23.reached:
        return "vllm.utils.torch_utils.get_accelerator_view_from_cpu_tensor"
    module = "vllm.utils.torch_utils" if VLLM_0_15.reached else "vllm.utils"
    return f"{module}.get_cuda_view_from_cpu_tensor"
