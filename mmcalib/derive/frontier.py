"""What each value of a knob does to the corpus (R2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmcalib.derive.cost_columns import CostColumns
from mmcalib.derive.costs import CostTable
from mmcalib.derive.percentiles import quantile
from mmcalib.domain.cost import Retention
from mmcalib.domain.knobs import Knob, thinned
from mmcalib.domain.media_option import Value
from mmcalib.domain.setting import DEFAULT, Setting, merged
from mmcalib.domain.shape_columns import Column


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
    now, kept = tokens_of(costs, before), retention(costs, before)
    accepted = costs.items()
    return Point(
        knob=knob,
        value=value,
        setting=table.setting,
        max_tokens=int(costs.tokens.max(initial=0)),
        p50_tokens=quantile(costs.tokens, costs.counts, 0.50),
        items=kept.items,
        items_downscaled=kept.items_smaller,
        worst_retention=kept.worst,
        items_enlarged=int(before.counts[now > before.tokens].sum()),
        least_pixels=least_pixels(table, default),
        least_frames=least_frames(table),
        mean_retention=kept.mean,
        p99_tokens=quantile(costs.tokens, costs.counts, 0.99),
        max_embeds=int(costs.embeds.max(initial=0)),
        process_s=float((costs.counts * costs.process_s).sum() / accepted) if accepted else 0.0,
        counted=bool(costs.has("counted").any()),
    )


def retention(costs: CostColumns, before: CostColumns) -> Retention:
    """What items keep of their tokens `before`; nothing, where vLLM refuses them now."""
    now, items = tokens_of(costs, before), before.items()
    smaller = np.flatnonzero(now < before.tokens)
    if not len(smaller):
        return Retention(items)
    shares, losing = now[smaller] / before.tokens[smaller], before.counts[smaller]
    worst = int(shares.argmin())
    return Retention(
        items,
        int(losing.sum()),
        float(1 - (losing * (1 - shares)).sum() / items),
        float(shares[worst]),
        before[int(smaller[worst])].exemplar,
    )


def tokens_of(costs: CostColumns, before: CostColumns) -> Column:
    """The tokens that each item of `before` takes now; 0 where vLLM refuses it."""
    if costs.shapes is before.shapes:
        return costs.tokens
    if not len(costs):
        return np.zeros(len(before), dtype=np.int64)
    rows = costs.shapes.places(before.shapes)
    return np.where(rows >= 0, costs.tokens[rows], 0)


def least_pixels(table: CostTable, default: CostTable) -> int | None:
    """The smallest picture that is made of an image by downscaling it, in pixels of the image: its
    own times the share of tokens that it keeps. None where no image is downscaled.
    """
    before = default.of("image")
    now = tokens_of(table.of("image"), before)
    smaller = now < before.tokens
    if not smaller.any():
        return None
    shares = now[smaller] / before.tokens[smaller]
    return int(np.floor(before.shapes.weights()[smaller] * shares).min())


def least_frames(table: CostTable) -> int | None:
    """The fewest frames that the loader keeps of a video that has more; None without any."""
    videos = table.of("video")
    fewer = thinned(videos)
    return int(videos.sampled[fewer, 0].min()) if fewer.any() else None
