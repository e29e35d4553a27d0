"""Experts are all alike: what vLLM does to the weights of each in turn is done to one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from mmcalib.child.rehearsal.patches.patching import find, replace
from mmcalib.releases import targets
from mmcalib.releases.release import TargetMoved

_Prepare = Callable[..., tuple[torch.Tensor, ...]]


def install() -> None:
    """Where a layer's experts are packed for Marlin one by one, which is tens of thousands of
    operations: minutes on a device that keeps books of each.
    """
    for target in targets.PACKED_ONE_BY_ONE:
        try:
            holder, name = find(target.name)
        except TargetMoved:
            if not target.may_be_missing:
                raise
            continue
        replace(target, for_one(getattr(holder, name)))


def for_one(prepare: _Prepare) -> _Prepare:
    """`prepare` as it is for the first expert, and its results as large as they are for all."""

    @functools.wraps(prepare)
    def prepared(layer: Any, *given: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        count = layer.num_experts

        def first(value: Any) -> Any:
            by_expert = isinstance(value, torch.Tensor) and value.shape[:1] == (count,)
            return value[:1] if by_expert else value

        layer.num_experts = 1
        try:
            one = prepare(
                layer, *map(first, given), **{name: first(value) for name, value in named.items()}
            )
        finally:
            layer.num_experts = count
        return tuple(part.new_empty((count, *part.shape[1:])) for part in one)

    return prepared
