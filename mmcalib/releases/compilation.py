"""torch.compile and CUDA graphs as vLLM is configured to use them."""

from __future__ import annotations

import copy
from typing import Any, Final

from mmcalib.releases.release import VLLM_0_10, VLLM_0_20, VLLM_0_32


def graph_mode(config: Any) -> str:
    """The name of the mode of CUDA graphs. Before 0.10 there are none, nor does startup subtract
    anything.
    """
    mode = config.compilation_config.cudagraph_mode if VLLM_0_10.reached else None
    return "NONE" if mode is None else str(mode.name)


def capture_sizes(config: Any) -> tuple[int, ...]:
    """The batches, in tokens, that CUDA graphs are captured of; none where they are off."""
    if graph_mode(config) == "NONE":
        return ()
    return tuple(sorted(config.compilation_config.cudagraph_capture_sizes or ()))


def forgo(config: Any) -> None:
    """Change an engine config so that its worker compiles and captures nothing."""
    if VLLM_0_10.reached:
        from vllm.config.compilation import CUDAGraphMode

        config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    # Wrapped for the compiler, a step would hide what it holds inside.
    if VLLM_0_20.reached:
        config.compilation_config.ir_enable_torch_wrap = False


def forgo_warmup(config: Any) -> None:
    """Change an engine config so that its worker, once it is up, tries no kernels."""
    if VLLM_0_32.reached:
        config.kernel_config.enable_jit_warmup = False


# Operations that choose among kernels themselves, compiled or not: the name says native, but what
# it calls are kernels of its own (model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py, 0.32).
CHOOSE_THEMSELVES: Final = frozenset({"ChunkGatedDeltaRule"})


def custom_op() -> Any:
    """The class of layers that have a CUDA kernel of vLLM's own."""
    from vllm.model_executor.custom_op import CustomOp

    return CustomOp


def eager_priorities(config: Any) -> Any:
    """Which kernels an engine takes that does not compile; None before they had an order."""
    if not VLLM_0_20.reached:
        return None
    from vllm.config.compilation import CompilationMode
    from vllm.platforms import current_platform

    eager = copy.copy(config)
    eager.compilation_config = copy.copy(config.compilation_config)
    eager.compilation_config.mode = CompilationMode.NONE
    return current_platform.get_default_ir_op_priority(eager)
