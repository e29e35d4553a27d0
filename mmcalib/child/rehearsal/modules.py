"""Which part of the model is at work, by its name in the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks

from mmcalib.child.rehearsal.device.ledger import Ledger


@contextmanager
def named_modules(model: nn.Module, ledger: Ledger) -> Iterator[None]:
    """While open, the ledger knows in which of the model's modules an operation runs."""
    names = {id(module): name for name, module in model.named_modules()}
    stack: list[str] = []

    def enter(module: nn.Module, args: Any) -> None:
        stack.append(ledger.module)
        ledger.module = names.get(id(module), ledger.module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        ledger.module = stack.pop() if stack else ""

    before = hooks.register_module_forward_pre_hook(enter)
    after = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
        ledger.module = ""
