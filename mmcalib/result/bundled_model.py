"""What `mmcalib models --json` lists."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, Self

from mmcalib.models.fact import Geometry, Status
from mmcalib.models.figures import ModelFigures
from mmcalib.result.part import DocumentPart

ModalityName = Literal["image", "video", "audio"]


class BundledFigures(DocumentPart):
    """Found by this release of vLLM. Measured: tokens of an image of 1024 × 1024 pixels, and of a
    minute of video and of sound; knobs by their names. Rehearsed: bytes of weights, None where
    vLLM does not start, and the smallest GPU of the catalogue that it starts on, by its defaults
    and with the engine arguments that were `calibrated` for a chat about one such image.
    """

    vllm: str
    tokens: dict[ModalityName, int]
    knobs: list[str]
    weights_bytes: int | None
    default_gpu: str | None
    calibrated: dict[str, Any]
    calibrated_gpu: str | None


class BundledModel(DocumentPart):
    """One model that calibrates offline. `facts` are how many are of each status; `figures` are
    None where none were found yet.
    """

    id: str
    architecture: str
    modalities: list[ModalityName]
    cannot_promise: list[str]
    facts: dict[Status, int]
    figures: BundledFigures | None

    @classmethod
    def of(cls, geometry: Geometry, figures: ModelFigures | None) -> Self:
        statuses = Counter(fact.status for _, fact in geometry.facts())
        return cls(
            id=geometry.id,
            architecture=geometry.architecture,
            modalities=list(geometry.modalities),  # type: ignore[arg-type]
            cannot_promise=list(geometry.cannot_promise),
            facts=dict(sorted(statuses.items())),
            figures=BundledFigures.model_validate(figures, from_attributes=True)
            if figures
            else None,
        )
