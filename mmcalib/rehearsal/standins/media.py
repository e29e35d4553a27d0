"""Dummy media without their pixels: a profile looks at sizes only."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from mmcalib.rehearsal.release import VLLM_0_15
from mmcalib.rehearsal.standins.seam import replace

_BUILDERS = "processing.dummy_inputs" if VLLM_0_15.reached else "profiling"
_hashes = itertools.count()


def install() -> None:
    """White frames share one byte, and no item is ever taken for one seen before."""
    replace(f"vllm.multimodal.{_BUILDERS}.np", _WhiteFrames())
    replace(
        "vllm.multimodal.hasher.MultiModalHasher.hash_kwargs",
        classmethod(lambda cls, *args, **kwargs: f"imaginary-{next(_hashes)}"),
    )


class _WhiteFrames:
    """numpy, except that a filled array repeats one entry instead of holding each."""

    def full(self, shape: Any, value: Any, dtype: Any = None) -> npt.NDArray[Any]:
        return np.broadcast_to(np.asarray(value, dtype=dtype), shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)
