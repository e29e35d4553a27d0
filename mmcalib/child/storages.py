"""What tensors hold, which may be views of one another."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """The bytes of their distinct storages, each by its address."""
    every = (tensor.untyped_storage() for tensor in tensors)
    return {storage._cdata: storage.nbytes() for storage in every}
