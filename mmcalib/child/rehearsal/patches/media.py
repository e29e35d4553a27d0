"""Dummy media without their pixels: a profile looks at sizes only."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import targets

_hashes = itertools.count()


def install() -> None:
    """White frames share one byte, and no item is ever taken for one seen before."""
    replace(targets.DUMMY_PIXELS, _WhiteFrames())
    replace(
        targets.HASH,
        classmethod(_hash),
    )
    # A long clip's features are a large host tensor.
    replace("torch._subclasses.fake_tensor.FakeTensor.numpy", _untouched)


def _hash(cls: type, *args: Any, **kwargs: Any) -> str:
    """A hash of its own for every item. What items share is compared by one too, so that those that
    differ in it are not batched (0.26): there one object is one hash.
    """
    if kwargs.keys() == {"data"}:
        return f"shared-{id(kwargs['data'])}"
    return f"imaginary-{next(_hashes)}"


def _untouched(self: torch.Tensor, **kwargs: Any) -> npt.NDArray[Any]:
    """An array for a large host tensor that is not there: pages that nobody has touched."""
    dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
    return np.zeros(tuple(self.shape), dtype)


class _White(np.ndarray[Any, Any]):
    """An array of one repeated entry: a copy would only take memory."""

    def copy(self, order: Any = "C") -> _White:
        return self


class _WhiteFrames:
    """numpy, except that a filled array repeats one entry instead of holding each."""

    def full(self, shape: Any, value: Any, dtype: Any = None) -> npt.NDArray[Any]:
        entry = np.asarray(value, dtype=dtype).view(_White)
        return np.broadcast_to(entry, shape, subok=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)
