"""torch.compile: the parts of a model that vLLM compiles run as written, with fused kernels.

What Inductor fuses leaves one result behind, and so do vLLM's own fused kernels, which compiled
code replaces: inside a compiled part they stand for it. Everything else runs as vLLM would run it
uncompiled; an encoder then has all the temporaries of its operations' native forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmcalib.rehearsal.standins.seam import replace

# The provider of vLLM's fused kernels among the implementations of vllm.ir operations.
_FUSED = "vllm_c"


class _Region:
    """Whether compiled code is running."""

    inside = False


def install() -> None:
    """Must come before vLLM's model classes are defined."""
    region = _Region()
    decorators = "vllm.compilation.decorators"
    wrapper = "vllm.compilation.wrapper.TorchCompileWithNoGuardsWrapper"
    replace(f"{wrapper}.__init__", lambda self, *args, **kwargs: None)
    decorate = replace(f"{decorators}._support_torch_compile", None)
    replace(f"{decorators}._support_torch_compile", _marking(decorate, region))
    _custom_ops(region)
    _ir_ops(region)


def _marking(decorate: Callable[..., Any], region: _Region) -> Callable[..., Any]:
    def support_torch_compile(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = decorate(cls, *args, **kwargs)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            before, region.inside = region.inside, region.inside or not self.do_not_compile
            try:
                return self.forward(*args, **kwargs)
            finally:
                region.inside = before

        made.__call__ = call
        return made

    return support_torch_compile


def _custom_ops(region: _Region) -> None:
    from vllm.model_executor.custom_op import CustomOp

    target = "vllm.model_executor.custom_op.CustomOp"

    def fused(op: Any, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        written = type(op).forward_cuda is not CustomOp.forward_cuda
        return op.forward_cuda if written else otherwise  # type: ignore[no-any-return]

    def maybe_compile(self: Any, function: Any, *, enable: bool = True) -> Any:
        from vllm.config.compilation import CompilationMode
        from vllm.model_executor.custom_op import get_cached_compilation_config

        config = get_cached_compilation_config()
        compiles = config.mode != CompilationMode.NONE and config.backend != "eager"
        return fused(self, function) if enable and compiles else function

    dispatch = replace(f"{target}.dispatch_forward", None)

    def dispatch_forward(self: Any, compile_native: bool) -> Any:
        outside = dispatch(self, compile_native)
        inside = fused(self, outside)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return (inside if region.inside else outside)(*args, **kwargs)

        return forward

    replace(f"{target}.maybe_compile", maybe_compile)
    replace(f"{target}.dispatch_forward", dispatch_forward)


def _ir_ops(region: _Region) -> None:
    target = "vllm.ir.op.IrOp.dispatch"
    choose = replace(target, None)

    def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if region.inside and _FUSED in self.impls:
            return self.impls[_FUSED]
        return choose(self, *args, **kwargs)

    replace(target, dispatch)
