"""Operations of which torch's meta kernels know all, asked for themselves: torch's fake mode does
the same, after much that is for tracing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_impls import op_implementations_checks
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten

# Not for a meta kernel, or what it raises says that it is not.
NOT_ASKED: Final = object()

# The fake mode has rules of its own for these, which differ where sizes are unknown.
_ALIKE_WITH_KNOWN_SIZES: Final = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.slice.Tensor,
    aten.select.int,
}
# Of a device that is named, or of values.
_OTHERS: Final = {torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded}

Operation = Any


class MetaKernels:
    """Results on the imaginary GPU, with the shapes, strides and aliases that the fake mode gives.

    Answers where every tensor of an operation is a fake one on that GPU and torch has a meta kernel
    and no rule beside it.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        self._fake = fake
        self._knows: dict[Operation, bool] = {}

    def result(
        self, func: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], flat: Sequence[Any]
    ) -> Any:
        """`flat` are the leaves of both; NOT_ASKED where the fake mode must."""
        knows = self._knows.get(func)
        if knows is None:
            knows = self._knows[func] = _known(func)
        if not knows or "device" in kwargs:
            return NOT_ASKED
        device = None
        for leaf in flat:
            if isinstance(leaf, torch.Tensor):
                if not isinstance(leaf, FakeTensor) or leaf.constant is not None:
                    return NOT_ASKED
                if device is None:
                    device = leaf.fake_device
                elif leaf.fake_device != device:
                    return NOT_ASKED
        if device is None or device.type != "cuda":
            return NOT_ASKED
        try:
            with in_kernel_invocation_manager(self._fake):
                made = func(*args, **kwargs)
        except NotImplementedError:
            return NOT_ASKED
        if isinstance(made, torch.Tensor):
            return self._on(device, made)
        return tree_map_only(torch.Tensor, lambda one: self._on(device, one), made)

    def _on(self, device: torch.device, made: torch.Tensor) -> FakeTensor:
        """What was written to is what was given."""
        return made if isinstance(made, FakeTensor) else FakeTensor(self._fake, made, device)


def _known(func: Operation) -> bool:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    if _OTHERS & set(func.tags):
        return False
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "Meta"):
        return False
    if func in _ALIKE_WITH_KNOWN_SIZES:
        return True
    return not any(applies(func) for applies, _ in op_implementations_checks)
