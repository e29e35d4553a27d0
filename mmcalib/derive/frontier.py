"""What each value of a knob does to the corpus (R2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmcalib.derive.costs import CostTable, ItemCost
from mmcalib.derive.percentiles import quantile
from mmcalib.domain.knobs import Knob, thinned
from mmcalib.domain.media_option import Value
from mmcalib.domain.setting import DEFAULT, Setting, merged
from mmcalib.domain.shapes import ImageShape


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate value of a knob and what it does to the items of the knob's modality.

    `mean_retention` is the mean over all items of the share of their tokens that they keep,
    `worst_retention` that of the item that keeps least. `max_embeds` is the most that one takes of
    the encoder cache, `process_s` the mean to load and process one. `counted`: some of the costs
    are computed.
    """

    knob: Knob
    value: Value
    setting: Setting
    max_tokens: int
    p50_tokens: int
    items: int
    items_downscaled: int
    worst_retention: float
    items_enlarged: int = 0
    least_pixels: int | None = None
    least_frames: int | None = None
    mean_retention: float = 1.0
    p99_tokens: int = 0
    max_embeds: int = 0
    process_s: float = 0.0
    counted: bool = False

    @property
    def share_downscaled(self) -> float:
        return self.items_downscaled / self.items if self.items else 0.0

    @property
    def beyond_default(self) -> bool:
        """Whether the value makes more of items than the model does by itself."""
        return self.value > self.knob.value


def at(knob: Knob, value: Value, base: Setting = DEFAULT) -> Setting:
    """The setting that gives the knob this value on top of `base`; its default value changes
    nothing.
    """
    if value == knob.value:
        return base
    return merged([base, knob.setting(value)])


def point(knob: Knob, value: Value, table: CostTable, default: CostTable) -> Point:
    """What the value does, compared item by item with the default setting. An item that vLLM
    refuses under it keeps nothing.
    """
    costs, before = table.of(knob.modality), default.of(knob.modality)
    now = {cost.shape: cost for cost in costs}
    kept = [(c.count, _retention(now.get(c.shape), c)) for c in before]
    items, accepted = sum(count for count, _ in kept), sum(c.count for c in costs)
    return Point(
        knob=knob,
        value=value,
        setting=table.setting,
        max_tokens=max((cost.tokens for cost in costs), default=0),
        p50_tokens=quantile(costs, 0.50),
        items=items,
        items_downscaled=sum(count for count, share in kept if share < 1),
        worst_retention=min((share for _, share in kept), default=1.0),
        items_enlarged=sum(
            c.count for c in before if c.shape in now and now[c.shape].tokens > c.tokens
        ),
        least_pixels=least_pixels(table, default),
        least_frames=least_frames(table),
        mean_retention=sum(n * share for n, share in kept) / items if items else 1.0,
        p99_tokens=quantile(costs, 0.99),
        max_embeds=max((cost.embeds for cost in costs), default=0),
        process_s=sum(c.count * c.process_s for c in costs) / accepted if accepted else 0.0,
        counted=any(cost.basis == "counted" for cost in costs),
    )


def _retention(now: ItemCost | None, before: ItemCost) -> float:
    """The share of its tokens that an item keeps; 1 where it has more than before."""
    if now is None:
        return 0.0
    return now.tokens / before.tokens if now.tokens < before.tokens else 1.0


def least_pixels(table: CostTable, default: CostTable) -> int | None:
    """The smallest picture that is made of an image by downscaling it, in pixels of the image: its
    own times the share of tokens that it keeps. None where no image is downscaled.
    """
    left = [
        before.shape.width_px * before.shape.height_px * _kept(table.costs.get(shape), before)
        for shape, before in default.costs.items()
        if isinstance(before.shape, ImageShape)
    ]
    return min((math.floor(pixels) for pixels in left if pixels >= 0), default=None)


def least_frames(table: CostTable) -> int | None:
    """The fewest frames that the loader keeps of a video that has more; None without any."""
    return min((cost.sampled[0] for cost in thinned(table.of("video"))), default=None)


def _kept(now: ItemCost | None, before: ItemCost) -> float:
    """Negative where nothing is taken away."""
    if now is None:
        return 0.0
    return now.tokens / before.tokens if now.tokens < before.tokens else -1.0
