"""What a processed item is made of: its tensors by name, their types and shapes, their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from mmcalib.domain.processed import TensorSpec

# Values compared at once: doubles of them take 32 MiB.
_PIECE = 1 << 22


def fields(items: Any) -> Iterator[tuple[str, Any]]:
    """Every tensor of the processed items by its place; other values as they are."""
    for number, item in enumerate(items):
        for name, element in item.items():
            place = f"{name}[{number}]" if number else name
            yield from _nested(place, getattr(element, "data", element))


def _nested(name: str, data: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(data, list | tuple) and data and isinstance(data[0], torch.Tensor | list | tuple):
        for number, one in enumerate(data):
            yield from _nested(f"{name}.{number}", one)
    else:
        yield name, data


def form(name: str, data: Any) -> TensorSpec:
    """Its type and shape; of a list its length, of any other value nothing more."""
    if isinstance(data, torch.Tensor):
        return TensorSpec(name, str(data.dtype).removeprefix("torch."), tuple(data.shape))
    shape = (len(data),) if isinstance(data, list | tuple) else ()
    return TensorSpec(name, type(data).__name__, shape)


def largest_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Between values of tensors of one name and shape; None without any."""
    off = [
        _largest(a, b)
        for name, a in one.items()
        if isinstance(a, torch.Tensor) and isinstance(b := other.get(name), torch.Tensor)
        if a.shape == b.shape and a.numel()
    ]
    return max(off, default=None)


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    """In pieces: a long video has hundreds of millions of values."""
    pieces = zip(one.flatten().split(_PIECE), other.flatten().split(_PIECE), strict=True)
    return max(float((a.cpu().double() - b.cpu().double()).abs().max()) for a, b in pieces)
