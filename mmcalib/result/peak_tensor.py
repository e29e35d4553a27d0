"""What lived at a peak."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from mmcalib.result.part import DocumentPart


class PeakTensor(DocumentPart):
    """One tensor that lived at a phase's peak, and what made it."""

    bytes: int = Field(validation_alias=AliasChoices("bytes", "nbytes"))
    shape: tuple[int, ...]
    dtype: str
    operation: str
    module: str
