"""Which shapes a value of a knob may change, and which one tells whether it is as the knob says."""

from __future__ import annotations

from collections.abc import Collection

from mmcalib.derive.costs import CostTable, heaviest
from mmcalib.domain.knobs import Knob
from mmcalib.domain.media_option import Value
from mmcalib.domain.shapes import Shape


def affected(knob: Knob, value: Value, default: CostTable) -> list[Shape]:
    """The shapes of the knob's modality that the value may change."""
    costs = default.of(knob.modality)
    return [cost.shape for cost in costs if knob.changes(cost.shape, value)]


def witness(knob: Knob, default: CostTable, changed: Collection[Shape]) -> Shape | None:
    """The costliest shape that should not change: if it does, the cap means something else."""
    known = set(changed)
    rest = [cost for cost in default.of(knob.modality) if cost.shape not in known]
    most = heaviest(rest)
    return most.shape if most else None
