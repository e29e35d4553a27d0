"""The document of `scan --json`: how many items of each modality, and what was skipped."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mmcalib.census.census import Census
from mmcalib.domain.shapes import Modality
from mmcalib.results.part import DocumentPart

Count = Annotated[int, Field(ge=1)]
Number = Annotated[int, Field(ge=0)]


class ScannedModality(DocumentPart):
    items: Count
    unique_shapes: Count


class ScannedCorpus(DocumentPart):
    """Counts of a corpus. With requests, every mention of an item counts. `files` counts the paths,
    `skipped` the unusable files and requests, `distinct` the items of different content, if that
    was requested.
    """

    items: Number
    prompts: Number
    files: Number
    skipped: Number
    modalities: dict[Modality, ScannedModality]
    distinct: Count | None = None


class SkippedItem(DocumentPart):
    """A file or request that could not be used."""

    path: str
    reason: str


class ScanDocument(DocumentPart):
    """The output of `scan --json`; `skipped` is sorted by path."""

    corpus: ScannedCorpus
    skipped: list[SkippedItem]


def scanned_modalities(census: Census) -> dict[Modality, ScannedModality]:
    """Count items and distinct shapes of each modality."""
    return {
        modality: ScannedModality(
            items=census.items(modality), unique_shapes=len(census.counts(modality))
        )
        for modality in census.modalities()
    }
