"""Memory on the GPU that will serve, as far as it was rehearsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.shapes import Modality
from mmcalib.errors import MmcalibError
from mmcalib.gpus.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Predicted:
    """What rehearsals on one GPU found. `points` runs along the decision's explored points; `steps`
    has the worst step of each served modality, and `calibrated` steps of the corpus' own items.

    A figure is None where its rehearsal ended early; `failure` is the first.
    """

    gpu: Gpu
    default: Rehearsed | None
    calibrated: Rehearsed | None = None
    points: tuple[Rehearsed | None, ...] = ()
    steps: Mapping[Modality, Rehearsed] = field(default_factory=dict)
    failure: MmcalibError | None = None
