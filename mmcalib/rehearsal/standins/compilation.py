"""torch.compile without compiling: what would be compiled runs as fused kernels, the rest as it is.

vLLM compiles the language model, and turns its own kernels off for that, also in parts of the model
that stay eager, such as vision encoders: there each step of a norm or an activation holds a tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from mmcalib.rehearsal.release import VLLM_0_23
from mmcalib.rehearsal.standins.seam import replace

_WRAPPER = "vllm.compilation.wrapper.TorchCompileWithNoGuardsWrapper"
_WRAPPER_BEFORE = "vllm.compilation.wrapper.TorchCompileWrapperWithCustomDispatcher"
_CUSTOM_OP = "vllm.model_executor.custom_op.CustomOp"


def install() -> None:
    """Must come before vLLM's layers are imported: some compile themselves when they are."""
    replace("torch.compile", _as_it_is)
    wrapper = _WRAPPER if VLLM_0_23.reached else _WRAPPER_BEFORE
    replace(f"{wrapper}.__init__", _would_be_compiled)
    replace(f"{_CUSTOM_OP}.maybe_compile", _maybe_fused, since=VLLM_0_23)


def prepare(config: Any) -> None:
    """Change an engine config so that its worker compiles and captures nothing."""
    from vllm.config import CUDAGraphMode

    config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    # Wrapped for the compiler, a step would hide what it holds inside.
    if hasattr(config.compilation_config, "ir_enable_torch_wrap"):
        config.compilation_config.ir_enable_torch_wrap = False


def _as_it_is(model: Any = None, **options: Any) -> Any:
    return model if model is not None else lambda function: function


def _would_be_compiled(self: Any, *args: Any, **kwargs: Any) -> None:
    """vLLM calls it, at the end of a module's own constructor, only for what it will compile."""
    self.do_not_compile = True
    for module in self.modules():
        fused = _fused(module)
        if fused is not None:
            module._forward_method = fused
    forward = self.forward
    priorities = _kernel_priorities(self.vllm_config)

    def with_kernels(*args: Any, **kwargs: Any) -> Any:
        if priorities is None:
            return forward(*args, **kwargs)
        with priorities.set_priority():
            return forward(*args, **kwargs)

    self.__dict__["forward"] = with_kernels


def _fused(module: torch.nn.Module) -> Callable[..., Any] | None:
    """The method that runs vLLM's own CUDA kernel, None where there is none."""
    from vllm.model_executor.custom_op import CustomOp

    if not isinstance(module, CustomOp) or type(module).forward_cuda is CustomOp.forward_cuda:
        return None
    method: Callable[..., Any] = module.forward_cuda
    return method


def _maybe_fused(self: Any, fn: Callable[..., Any], *, enable: bool = True) -> Callable[..., Any]:
    """A step that vLLM compiles by itself, even where the module around it stays eager."""
    if enable and getattr(fn, "__name__", "") == "forward_native":
        return _fused(self) or fn
    return fn


def _kernel_priorities(config: Any) -> Any:
    """Those of an engine that does not compile: compiled steps hold what kernels hold."""
    if not VLLM_0_23.reached:
        return None
    from vllm.config.compilation import CompilationMode
    from vllm.platforms import current_platform

    eager = copy.copy(config)
    eager.compilation_config = copy.copy(config.compilation_config)
    eager.compilation_config.mode = CompilationMode.NONE
    return current_platform.get_default_ir_op_priority(eager)
