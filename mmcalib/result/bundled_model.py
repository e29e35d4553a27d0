"""What `mmcalib list models --json` lists."""

from __future__ import annotations

from collections import Counter
from typing import Literal, Self

from mmcalib.models.fact import Geometry, Status
from mmcalib.result.part import DocumentPart


class BundledModel(DocumentPart):
    """One model that calibrates offline. `facts` are how many are of each status."""

    id: str
    architecture: str
    modalities: list[Literal["image", "video", "audio"]]
    cannot_promise: list[str]
    facts: dict[Status, int]

    @classmethod
    def of(cls, geometry: Geometry) -> Self:
        statuses = Counter(fact.status for _, fact in geometry.facts())
        return cls(
            id=geometry.id,
            architecture=geometry.architecture,
            modalities=list(geometry.modalities),  # type: ignore[arg-type]
            cannot_promise=list(geometry.cannot_promise),
            facts=dict(sorted(statuses.items())),
        )
