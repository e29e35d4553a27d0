"""Which shapes a value of a knob may change, and which one tells whether it is as the knob says."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from mmcalib.derive.costs import CostTable
from mmcalib.domain.knobs import Knob
from mmcalib.domain.media_option import Value
from mmcalib.domain.shapes import Shape


def affected(knob: Knob, value: Value, default: CostTable) -> list[Shape]:
    """The shapes of the knob's modality that the value may change."""
    shapes = default.of(knob.modality).shapes
    return list(shapes.take(np.flatnonzero(knob.changed(shapes, value))))


def witness(knob: Knob, default: CostTable, changed: Collection[Shape]) -> Shape | None:
    """The costliest shape that should not change: if it does, the cap means something else."""
    costs = default.of(knob.modality)
    most = costs.but(dict.fromkeys(changed)).heaviest
    return most.shape if most else None
