"""Candidate values of a knob, and which shapes each may change (R2)."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import assert_never

from mmcalib.derive.costs import CostTable, ItemCost, heaviest
from mmcalib.derive.floor import frame_values
from mmcalib.derive.policy import Policy
from mmcalib.domain.knobs import Knob
from mmcalib.domain.shapes import AudioShape, Shape, VideoShape

# Of the corpus' own areas only the largest decide without loss.
_OWN = 4
# Caps that people use and can compare with, in tokens per image or frame.
_LADDER_TOKENS = (256, 512, 768, 1024, 1280, 2048, 4096, 8192, 16384)
# A video has many frames: a context may be too short for it with less than that each.
_FRAME_TOKENS = (32, 64, 128)
# Where these are fewer, equal parts of the corpus' largest area are tried as well.
_PARTS = 8

Value = int | float


def candidates(knob: Knob, default: CostTable, policy: Policy) -> list[Value]:
    """Values to try, ascending. Steps as the knob says; tiles one by one up to the default; areas
    up to the default on a ladder of tokens, plus those at which the corpus' own heaviest shapes
    just fit: as single pictures, and as the stack of frames that some processors bound instead.
    """
    match knob.kind:
        case "edge" | "crops" | "frames":
            return sorted({*knob.steps, *frame_values(knob, default, policy)})
        case "tiles":
            return list(range(1, int(knob.value) + 1))
        case "area":
            return _area_values(knob, default, policy)
        case _:
            assert_never(knob.kind)


def _area_values(knob: Knob, default: CostTable, policy: Policy) -> list[Value]:
    """In pixels where it is not known how many make a token."""
    unit = knob.unit_tokens or 1
    costs = default.of(knob.modality)
    areas = {area for cost in costs for area in _areas(cost, unit)}
    volumes = {volume for cost in costs for volume in _volumes(cost, unit)}
    ceiling = max(areas | volumes, default=0)
    rungs = (*_FRAME_TOKENS, *_LADDER_TOKENS) if knob.modality == "video" else _LADDER_TOKENS
    ladder = {unit * tokens for tokens in rungs if unit * tokens <= ceiling}
    wanted = {*ladder, *sorted(areas)[-_OWN:], *sorted(volumes)[-_OWN:]}
    floor = max(knob.companions.values(), default=unit)
    kept = {value for value in wanted if floor <= value < knob.value}
    if len(kept) < _PARTS - 1:
        parts = {ceiling * part // _PARTS // unit * unit for part in range(1, _PARTS)}
        kept |= {value for value in parts if floor <= value < knob.value}
    if policy.max_tokens_per_item is not None and knob.unit_tokens is not None:
        kept.add(unit * policy.max_tokens_per_item)
    return [*sorted(value for value in kept if value < knob.value), knob.value]


def _areas(cost: ItemCost, unit: int) -> tuple[int, ...]:
    """The area that this shape takes when each edge is rounded to the processor's unit."""
    shape = cost.shape
    if isinstance(shape, AudioShape):
        return ()
    edge = math.isqrt(unit)
    sides = (shape.width_px / edge, shape.height_px / edge)
    nearest = max(1, round(sides[0])) * max(1, round(sides[1])) * unit
    above = math.ceil(sides[0]) * math.ceil(sides[1]) * unit
    return nearest, above


def _volumes(cost: ItemCost, unit: int) -> tuple[int, ...]:
    """The same for all frames that the loader keeps of a video."""
    if not isinstance(cost.shape, VideoShape) or not cost.sampled:
        return ()
    return tuple(area * cost.sampled[0] for area in _areas(cost, unit))


def exceeding(knob: Knob, value: Value, default: CostTable) -> list[Shape]:
    """Shapes that the cap may change: of areas those that do not fit under it, else all."""
    costs = default.of(knob.modality)
    if knob.kind != "area":
        return [cost.shape for cost in costs]
    unit = knob.unit_tokens or 1
    return [c.shape for c in costs if min(_areas(c, unit), default=0) > value]


def witness(knob: Knob, default: CostTable, changed: Collection[Shape]) -> Shape | None:
    """The costliest shape that should not change: if it does, the cap means something else."""
    rest = [cost for cost in default.of(knob.modality) if cost.shape not in set(changed)]
    most = heaviest(rest)
    return most.shape if most else None
