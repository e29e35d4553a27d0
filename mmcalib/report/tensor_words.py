"""A tensor that lived at a peak, in words."""

from __future__ import annotations

from mmcalib import wording
from mmcalib.results.memory import PeakTensor


def tensor_cells(one: PeakTensor) -> tuple[str, str, str, str]:
    """How much it takes, its shape, its type, and what made it."""
    shape = " × ".join(wording.number(size) for size in one.shape)
    operation = one.operation.removeprefix("aten.").partition(".")[0]
    return wording.gib(one.bytes), shape, one.dtype, f"{one.module or 'inputs'} ({operation})"
