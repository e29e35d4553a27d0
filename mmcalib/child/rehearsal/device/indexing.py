"""Indexing by a mask: how many entries it picks must be known before the result has a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from mmcalib.child.rehearsal.device.imaginary import ImaginaryGpu

aten = torch.ops.aten
_INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
_MASKS = (torch.bool, torch.uint8)


def without_masks(gpu: ImaginaryGpu, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with every mask of known value turned into positions, as torch does first,
    unless it only fills in a number. An unknown one that picks whole rows to be read lets all
    through: encoders strip padding so, of which the largest item has none.
    """
    if func not in _INDEXED or (len(args) > 2 and _fills(args[2])):
        return args
    indices: list[Any] = []
    for index in args[1]:
        if index is None or index.dtype not in _MASKS:
            indices.append(index)
            continue
        mask = gpu.values.of(index) if isinstance(index, FakeTensor) else index
        if mask is None and func is aten.index.Tensor and index.ndim < args[0].ndim:
            gpu.whole_masks += 1
            mask = torch.ones(index.shape, dtype=torch.bool)
        if mask is None:
            indices.append(index)
        else:
            indices += [gpu.made_of(p, "aten.nonzero") for p in mask.nonzero(as_tuple=True)]
    return (args[0], indices, *args[2:])


def _fills(value: Any) -> bool:
    """Whether torch fills masked entries in place, and makes no positions
    (`canDispatchToMaskedFill`, aten/src/ATen/native/TensorAdvancedIndexing.cpp).
    """
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu"
