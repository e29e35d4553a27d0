"""torch.compile without compiling: what would be compiled runs as fused kernels, the rest as it is.

vLLM compiles the language model, and turns its own kernels off for that, also in parts of the model
that stay eager, such as vision encoders: there each step of a norm or an activation holds a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from mmcalib.child.rehearsal.device.ledger import Ledger
from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import compilation, targets
from mmcalib.releases.backends import attention_layer


def install(ledger: Ledger) -> None:
    """Must come before vLLM's layers are imported: some compile themselves when they are."""

    def would_be_compiled(self: Any, *args: Any, **kwargs: Any) -> None:
        """vLLM calls it, at the end of a module's own constructor, for what it will compile."""
        self.do_not_compile = True
        _Compiled(self, ledger).take_over()

    replace("torch.compile", _as_it_is)
    replace(targets.COMPILED, would_be_compiled)
    replace(targets.MAYBE_COMPILE, _maybe_fused)
    # It would make examples of what it will look for.
    replace(targets.COMPILER_START, lambda device: None)


def _as_it_is(model: Any = None, **options: Any) -> Any:
    return model if model is not None else lambda function: function


class _Compiled:
    """A module that vLLM would compile: cut at attention, into pieces that change nothing in place.

    What a piece is given lives until it ends, as its caller holds it: the attention's output, and
    the residual, which the first norm of a piece therefore writes anew. Nothing else is kept: what
    a norm made of the residual before the attention is gone after it.
    """

    def __init__(self, module: torch.nn.Module, ledger: Ledger) -> None:
        self._module, self._ledger = module, ledger
        self._priorities = compilation.eager_priorities(module.vllm_config)
        self._given: list[Any] = []
        self._may_write = True
        self._normed: torch.Tensor | None = None

    def take_over(self) -> None:
        """Replace methods of the module and of what is in it."""
        attention: Any = attention_layer()
        for module in self._module.modules():
            if isinstance(module, attention):
                module.register_forward_pre_hook(self._end_piece)
                module.register_forward_hook(self._begin_piece)
            fused = _fused(module)
            if fused is None:
                continue
            name = type(module).__name__
            if name.endswith("AndMul"):
                fused = self._activation(fused)
            elif name.endswith("RMSNorm"):
                fused = self._norm(fused)
            module._forward_method = fused
        self._module.__dict__["forward"] = self._with_kernels(self._module.forward)

    def _with_kernels(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def with_kernels(*args: Any, **kwargs: Any) -> Any:
            with self._priorities.set_priority() if self._priorities else nullcontext():
                result = forward(*args, **kwargs)
            self._end_piece()
            self._normed = None
            return result

        return with_kernels

    def _begin_piece(self, module: Any, args: Any, output: Any) -> None:
        if self._normed is not None:
            self._ledger.drop(self._normed)
            self._normed = None
        self._given, self._may_write = [output], False

    def _end_piece(self, *call: Any) -> None:
        self._given.clear()
        self._may_write = True

    def _activation(self, fused: Callable[..., Any]) -> Callable[..., Any]:
        """Compiled, it is the last to read what it is given, and that is gone when it returns."""

        def call(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = fused(x, *args, **kwargs)
            self._ledger.drop(x)
            return result

        return call

    def _norm(self, fused: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: Any, *args: Any, **kwargs: Any) -> Any:
            residual = args[0] if args else kwargs.pop("residual", None)
            if residual is None:
                return fused(x, *args, **kwargs)
            if not self._may_write:
                self._given.append(residual)
                self._may_write = True
                residual = torch.empty_like(residual)
            result = fused(x, residual, *args[1:], **kwargs)
            self._normed = result[0]
            return result

        return call


def _fused(module: torch.nn.Module) -> Callable[..., Any] | None:
    """The method that runs vLLM's own CUDA kernel, None where there is none."""
    kind = compilation.custom_op()
    if not isinstance(module, kind) or type(module).forward_cuda is kind.forward_cuda:
        return None
    if type(module).__name__ in compilation.CHOOSE_THEMSELVES:
        return None
    method: Callable[..., Any] = module.forward_cuda
    return method


def _maybe_fused(self: Any, fn: Callable[..., Any], *, enable: bool = True) -> Callable[..., Any]:
    """A step that vLLM compiles by itself, even where the module around it stays eager."""
    if enable and getattr(fn, "__name__", "") == "forward_native":
        return _fused(self) or fn
    return fn
