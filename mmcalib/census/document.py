"""What `scan --json` prints: how much of what a corpus holds, and what was left out."""

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
    """With requests, every mention of an item counts. `files` are the paths that were found,
    `skipped` the files and requests that could not be used. So many items are `distinct` in
    content, if that was asked for.
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
    """What `scan --json` prints; `skipped` is sorted by path."""

    corpus: ScannedCorpus
    skipped: list[SkippedItem]


def modalities_of(census: Census) -> dict[Modality, ScannedModality]:
    """What there is of each modality."""
    return {
        modality: ScannedModality(
            items=census.items(modality), unique_shapes=len(census.counts(modality))
        )
        for modality in census.modalities()
    }
