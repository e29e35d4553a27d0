"""Points of a knob (one per value), the choice among them, and dominance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mmcalib.domain.knobs import DEFAULT, Knob, Setting, Value, merge_settings, subsampled_mask
from mmcalib.domain.model import Retention
from mmcalib.domain.shape_columns import Column
from mmcalib.limits.costs import CostColumns, CostTable, quantile
from mmcalib.limits.policy import Policy


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a knob and its effect on the items of its modality: the mean and worst share of
    tokens that they keep, the most encoder-cache entries (`max_embeds`), and the mean `process_s`
    to load and process one. `counted`: some of the costs are computed. `items_shrunk` keep less
    than all pixels, None if unknown, and `kept_pixels` is the mean share; `items_gaining` keep less
    by default and get more tokens here; `mean_enlargement` is the mean of tokens ÷ the default's.
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
    items_shrunk: int | None = None
    items_gaining: int = 0
    kept_pixels: float = 0.0
    mean_enlargement: float = 1.0
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
    def is_beyond_default(self) -> bool:
        """True if the value allows more of an item than the model's default."""
        return self.value > self.knob.value

    @property
    def detail(self) -> float:
        """Mean share of their pixels that images keep, or of the default's tokens for videos."""
        return self.mean_enlargement if self.knob.modality == "video" else self.kept_pixels


def setting_at(knob: Knob, value: Value, base: Setting = DEFAULT) -> Setting:
    """Set this value on top of `base`; the default value changes nothing."""
    return base if value == knob.value else merge_settings([base, knob.setting(value)])


def make_point(knob: Knob, value: Value, table: CostTable, default: CostTable) -> Point:
    """Compare the value with the default item by item; rejected items keep no tokens."""
    costs, before = table.columns_of(knob.modality), default.columns_of(knob.modality)
    now, retained = tokens_of(costs, before), compute_retention(costs, before)
    accepted, larger = costs.item_count(), now > before.tokens
    kept, usual = knob.kept_pixels(costs, value), knob.kept_pixels(before, knob.value)
    ratios = now / before.tokens.clip(min=1) * before.counts
    return Point(
        knob=knob,
        value=value,
        setting=table.setting,
        max_tokens=int(costs.tokens.max(initial=0)),
        p50_tokens=quantile(costs.tokens, costs.counts, 0.50),
        items=before.item_count(),
        items_downscaled=retained.items_smaller,
        worst_retention=retained.worst,
        items_enlarged=int(before.counts[larger].sum()),
        items_shrunk=None if kept is None else int(costs.counts[kept < 1].sum()),
        items_gaining=int(before.counts[larger & (True if usual is None else usual < 1)].sum()),
        kept_pixels=0.0
        if kept is None
        else float((costs.counts * kept).sum() / before.item_count()),
        mean_enlargement=float(ratios.sum() / before.item_count()) if value > knob.value else 1.0,
        least_pixels=least_pixels(table, default),
        least_frames=least_frames(table),
        mean_retention=retained.mean,
        p99_tokens=quantile(costs.tokens, costs.counts, 0.99),
        max_embeds=int(costs.embeds.max(initial=0)),
        process_s=float((costs.counts * costs.process_s).sum() / accepted) if accepted else 0.0,
        counted=bool(costs.basis_mask("counted").any()),
    )


def compute_retention(costs: CostColumns, before: CostColumns) -> Retention:
    """Share of their tokens `before` that items keep; 0 if vLLM rejects them now."""
    now, items = tokens_of(costs, before), before.item_count()
    smaller = np.flatnonzero(now < before.tokens)
    if not len(smaller):
        return Retention()
    shares, losing = now[smaller] / before.tokens[smaller], before.counts[smaller]
    worst = int(shares.argmin())
    return Retention(
        int(losing.sum()),
        float(1 - (losing * (1 - shares)).sum() / items),
        float(shares[worst]),
        before[int(smaller[worst])].exemplar,
    )


def tokens_of(costs: CostColumns, before: CostColumns) -> Column:
    """Tokens that each item of `before` takes now; 0 if vLLM rejects it."""
    if costs.shapes is before.shapes:
        return costs.tokens
    if not len(costs):
        return np.zeros(len(before), dtype=np.int64)
    rows = costs.shapes.positions(before.shapes)
    return np.where(rows >= 0, costs.tokens[rows], 0)


def least_pixels(table: CostTable, default: CostTable) -> int | None:
    """Pixels of the smallest downscaled image: its own × its retention; None without any."""
    before = default.columns_of("image")
    now = tokens_of(table.columns_of("image"), before)
    smaller = now < before.tokens
    if not smaller.any():
        return None
    shares = now[smaller] / before.tokens[smaller]
    return int(np.floor(before.shapes.weights()[smaller] * shares).min())


def least_frames(table: CostTable) -> int | None:
    """The fewest frames that the loader returns of a video with more; None without any."""
    videos = table.columns_of("video")
    fewer = subsampled_mask(videos)
    return int(videos.sampled[fewer, 0].min()) if fewer.any() else None


# Share of the items that `prefer: throughput` may downscale.
_THROUGHPUT_SHARE = 0.5


def choose_point(points: Sequence[Point], policy: Policy, at_most: int | None = None) -> Point:
    """Choose among points in ascending order of value; none below the quality floor.

    quality: the smallest value that downscales nothing. throughput: the smallest that downscales at
    most half of the items. detail: above the default if that shrinks items, see `most_detailed`.
    `max_tokens_per_item`: the largest value within it. If memory or context limits items to
    `at_most` tokens: the largest value within that. The frames that the loader returns are the
    user's choice, and are only raised to the floor.
    """
    allowed = [point for point in points if meets_floor(point, policy)]
    if points[0].knob.is_loader_option:
        default = next(p for p in points if p.value == p.knob.value)
        return default if default in allowed or not allowed else allowed[0]
    detailed = most_detailed(allowed) if policy.raises_detail else None
    # Values beyond the model's default are shown, but only `detail` chooses them.
    most = detailed.value if detailed else points[0].knob.value
    allowed = [point for point in allowed if point.value <= most]
    wanted = detailed or _choose_by_policy(allowed, policy)
    if at_most is None or wanted.max_tokens <= at_most:
        return wanted
    within = [point for point in allowed if point.max_tokens <= at_most]
    return within[-1] if within else allowed[0]


def most_detailed(points: Sequence[Point]) -> Point | None:
    """The smallest value above the default with most detail; None if none is known to have more."""
    default = next((point for point in points if point.value == point.knob.value), None)
    higher = [p for p in points if p.is_beyond_default and not p.items_downscaled]
    best = max(higher, key=lambda point: point.detail, default=None)
    return best if default and best and best.detail > default.detail else None


def token_levels(frontiers: Iterable[Sequence[Point]], policy: Policy) -> list[int]:
    """Caps on tokens per item to try in turn, if the policy's own choice is not enough."""
    if policy.max_tokens_per_item is not None:
        return []
    turned = [f for f in frontiers if not f[0].knob.is_loader_option]
    now = max((choose_point(points, policy).max_tokens for points in turned), default=0)
    tried = {p.max_tokens for points in turned for p in points if meets_floor(p, policy)}
    return sorted((tokens for tokens in tried if tokens < now), reverse=True)


def meets_floor(point: Point, policy: Policy) -> bool:
    """True if every image keeps enough pixels and every video enough frames."""
    if point.knob.is_loader_option:
        return point.least_frames is None or point.least_frames >= policy.min_video_frames
    return point.least_pixels is None or point.least_pixels >= policy.min_image_pixels


def _choose_by_policy(points: Sequence[Point], policy: Policy) -> Point:
    """Choose by the policy alone; the default downscales nothing, so there is always a point."""
    if policy.max_tokens_per_item is not None:
        cap = policy.max_tokens_per_item
        most = points[0].knob.value_for_tokens(cap)
        within = [p for p in points if (p.max_tokens <= cap if most is None else p.value <= most)]
        return within[-1] if within else points[0]
    if policy.prefer == "throughput":
        return next(p for p in points if p.share_downscaled <= _THROUGHPUT_SHARE)
    # A cap can also enlarge: the rule that shrinks very narrow images overshoots.
    return next(p for p in points if not p.items_downscaled and not p.items_enlarged)


@dataclass(frozen=True, slots=True)
class RatedPoint:
    """A point with its encoder budget and, once rehearsed, the KV cache's tokens."""

    point: Point
    budget_tokens: int
    kv_tokens: int | None = None


def find_dominated(rated: Sequence[RatedPoint]) -> list[bool]:
    """Per point, whether another of its modality is at least as good in what items keep and cost,
    and better in one. Values that enlarge items are not comparable, so never dominated.
    """
    return [
        not one.point.is_beyond_default and any(_dominates(other, one) for other in rated)
        for one in rated
    ]


def _dominates(better: RatedPoint, worse: RatedPoint) -> bool:
    if better.point.knob.modality != worse.point.knob.modality:
        return False
    pairs = list(zip(_scores(better), _scores(worse), strict=True))
    if better.kv_tokens is not None and worse.kv_tokens is not None:
        pairs.append((better.kv_tokens, worse.kv_tokens))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def _scores(rated: RatedPoint) -> tuple[float, ...]:
    """Higher is better."""
    point = rated.point
    quality = -point.share_downscaled, point.mean_retention, point.worst_retention
    return *quality, -point.max_tokens, -rated.budget_tokens
