"""vLLM's parameter classes over fake tensors: quantized layers ask them how they are packed.

Torch makes a plain fake tensor of a parameter whose data are fake; what vLLM's class would have
added is lost with it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import targets


@cache
def faked(kind: Any) -> Any:
    """The class whose fake tensors are parameters of this kind."""
    return kind if issubclass(kind, FakeTensor) else type(kind.__name__, (kind, FakeTensor), {})


def install() -> None:
    """Parameters keep their kind where they are made, and where online quantization makes them."""
    make = replace(targets.PARAMETER, None)
    materialise = replace(targets.MATERIALIZE, None)

    def new(cls: type, data: torch.Tensor | None, **kwargs: Any) -> Any:
        made = make(cls, data, **kwargs)
        if type(made) is FakeTensor:
            made.__class__ = faked(cls)
        return made

    def shallow_copy(param: torch.Tensor) -> torch.Tensor:
        """Of its class and attributes over the same storage."""
        copy = param.detach()
        copy.__class__ = type(param)
        copy.__dict__.update({**param.__dict__, **copy.__dict__})
        return copy

    def materialize_meta_tensor(meta_tensor: torch.Tensor) -> torch.Tensor:
        plain = torch.empty_strided(
            tuple(meta_tensor.size()), tuple(meta_tensor.stride()), dtype=meta_tensor.dtype
        )
        if not isinstance(plain, FakeTensor):
            return materialise(meta_tensor)
        facts = {**plain.__dict__, **meta_tensor.__dict__, "fake_device": plain.fake_device}
        kind: Any = type(meta_tensor)
        plain.__class__ = faked(kind)
        plain.__dict__.update(facts)
        return plain

    replace(targets.PARAMETER, new)
    replace(targets.SHALLOW_COPY, shallow_copy)
    replace(targets.MATERIALIZE, materialize_meta_tensor)
