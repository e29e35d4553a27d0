"""In which type a CPU computes what a GPU would in bfloat16."""

from __future__ import annotations

from typing import Any

import torch

# Every CPU has it.
STAND_IN = torch.float32


def emulates(model_config: Any) -> bool:
    """Whether this CPU has no products of bfloat16, and the model can do without: where PyTorch
    emulates them, one of 2048 × 2048 took two hundred times as long as in float32. Quantised
    weights come in a type of their own.
    """
    if model_config.quantization is not None or model_config.dtype != torch.bfloat16:
        return False
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
