"""Which bundled models somebody looks for."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.domain.shapes import Modality
from mmcalib.gpus.catalogue import find as find_gpu
from mmcalib.gpus.gpu import Gpu
from mmcalib.models.fact import Geometry
from mmcalib.models.figures import ModelFigures


@dataclass(frozen=True, slots=True)
class WantedModels:
    """`words` are parts of the id, in any case; `modalities` are taken all. `max_weights_bytes` and
    `gpu`, on which a calibrated configuration starts, leave out models that nothing is known of.
    """

    words: tuple[str, ...] = ()
    modalities: tuple[Modality, ...] = ()
    max_weights_bytes: int | None = None
    gpu: Gpu | None = None

    def fits(self, geometry: Geometry, figures: ModelFigures | None) -> bool:
        name = geometry.id.lower()
        return (
            all(word.lower() in name for word in self.words)
            and set(self.modalities) <= set(geometry.modalities)
            and self._is_light(figures)
            and self._starts(figures)
        )

    def _is_light(self, figures: ModelFigures | None) -> bool:
        if self.max_weights_bytes is None:
            return True
        weights = figures.weights_bytes if figures else None
        return weights is not None and weights <= self.max_weights_bytes

    def _starts(self, figures: ModelFigures | None) -> bool:
        if self.gpu is None:
            return True
        least = figures.calibrated_gpu if figures else None
        return least is not None and find_gpu(least).total_bytes <= self.gpu.total_bytes
