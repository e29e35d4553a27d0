"""What lived at a peak."""

from __future__ import annotations

from collections.abc import Iterable

from mmcalib.domain.rehearsed import LiveTensor
from mmcalib.result.part import DocumentPart


class PeakTensor(DocumentPart):
    """One tensor that lived at a phase's peak, and what made it."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    operation: str
    module: str


def peak_tensors(largest: Iterable[LiveTensor]) -> list[PeakTensor]:
    """As the documents show them."""
    return [
        PeakTensor(
            bytes=one.nbytes,
            shape=one.shape,
            dtype=one.dtype,
            operation=one.operation,
            module=one.module,
        )
        for one in largest
    ]
