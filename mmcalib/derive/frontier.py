"""Candidate values of a knob, and what each does to the corpus (R2)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcalib.census.shapes import AudioShape, Shape, VideoShape
from mmcalib.derive.costs import CostTable, ItemCost, heaviest
from mmcalib.derive.policy import Policy
from mmcalib.engine.messages import Knob
from mmcalib.engine.setting import DEFAULT, Setting

# Of the corpus' own areas only the largest decide without loss.
_OWN = 4
# Caps that people use and can compare with, in tokens per image or frame.
_LADDER_TOKENS = (256, 512, 768, 1024, 1280, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate value of a knob and what it does to the items of the knob's modality."""

    knob: Knob
    value: int | float
    setting: Setting
    max_tokens: int
    p50_tokens: int
    items: int
    items_downscaled: int
    worst_retention: float
    items_enlarged: int = 0

    @property
    def share_downscaled(self) -> float:
        return self.items_downscaled / self.items if self.items else 0.0


Value = int | float


def candidates(knob: Knob, default: CostTable, policy: Policy) -> list[Value]:
    """Values to try, ascending, the default last. Frames as the knob says; tiles one by one; areas
    on a ladder of tokens, plus those at which the corpus' own heaviest shapes just fit: as single
    pictures, and as the stack of frames that some processors bound instead.
    """
    unit = knob.unit_tokens
    if knob.steps:
        return list(knob.steps)
    if unit is None:
        return list(range(1, int(knob.value) + 1))
    costs = default.of(knob.modality)
    areas = {area for cost in costs for area in _areas(cost, unit)}
    volumes = {volume for cost in costs for volume in _volumes(cost, unit)}
    ceiling = max(areas | volumes, default=0)
    ladder = {unit * tokens for tokens in _LADDER_TOKENS if unit * tokens <= ceiling}
    wanted = {*ladder, *sorted(areas)[-_OWN:], *sorted(volumes)[-_OWN:]}
    floor = max(knob.companions.values(), default=unit)
    kept = {value for value in wanted if value >= floor}
    if policy.max_tokens_per_item is not None:
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


def at(knob: Knob, value: Value, base: Setting = DEFAULT) -> Setting:
    """The setting that gives the knob this value on top of `base`; its default value changes
    nothing.
    """
    if value == knob.value:
        return base
    inner: Any = value
    for depth, key in enumerate(reversed(knob.path)):
        companions = knob.companions if depth == 0 else {}
        inner = {key: inner, **{name: min(v, value) for name, v in companions.items()}}
    return merged([base, Setting(**{knob.argument: inner})])


def merged(settings: Iterable[Setting]) -> Setting:
    """All processor kwargs together; settings of different knobs do not overlap."""
    kwargs: dict[str, Any] = {}
    media: dict[str, Any] = {}
    for setting in settings:
        _merge(kwargs, setting.mm_processor_kwargs)
        _merge(media, setting.media_io_kwargs)
    return Setting(kwargs, media)


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def exceeding(knob: Knob, value: Value, default: CostTable) -> list[Shape]:
    """Shapes that the cap may change: all for tiles; for areas those that do not fit under it."""
    costs = default.of(knob.modality)
    if knob.unit_tokens is None:
        return [cost.shape for cost in costs]
    return [c.shape for c in costs if min(_areas(c, knob.unit_tokens), default=0) > value]


def witness(knob: Knob, default: CostTable, changed: Collection[Shape]) -> Shape | None:
    """The costliest shape that should not change: if it does, the cap means something else."""
    rest = [cost for cost in default.of(knob.modality) if cost.shape not in set(changed)]
    most = heaviest(rest)
    return most.shape if most else None


def point(knob: Knob, value: Value, table: CostTable, default: CostTable) -> Point:
    """What the value does, compared item by item with the default setting. An item that vLLM
    refuses under it keeps nothing.
    """
    now = {cost.shape: cost for cost in table.of(knob.modality)}
    kept = [(c.count, _retention(now.get(c.shape), c)) for c in default.of(knob.modality)]
    smaller = [(count, share) for count, share in kept if share < 1]
    ordered = sorted(now.values(), key=lambda cost: cost.tokens)
    return Point(
        knob=knob,
        value=value,
        setting=table.setting,
        max_tokens=max((cost.tokens for cost in ordered), default=0),
        p50_tokens=_median([(cost.tokens, cost.count) for cost in ordered]),
        items=sum(count for count, _ in kept),
        items_downscaled=sum(count for count, _ in smaller),
        worst_retention=min((share for _, share in smaller), default=1.0),
        items_enlarged=sum(
            c.count
            for c in default.of(knob.modality)
            if c.shape in now and now[c.shape].tokens > c.tokens
        ),
    )


def _retention(now: ItemCost | None, before: ItemCost) -> float:
    """The share of its tokens that an item keeps; 1 where it has more than before."""
    if now is None:
        return 0.0
    return now.tokens / before.tokens if now.tokens < before.tokens else 1.0


def _median(pairs: Sequence[tuple[int, int]]) -> int:
    half, covered = sum(count for _, count in pairs) / 2, 0
    for tokens, count in pairs:
        covered += count
        if covered >= half:
            return tokens
    return 0
