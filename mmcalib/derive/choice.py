"""Which point of a knob's frontier the policy takes (R2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmcalib.derive.frontier import Point
from mmcalib.derive.policy import Policy

# Of the items, under `prefer: throughput`: the share that may be downscaled.
_THROUGHPUT_SHARE = 0.5


def choose(points: Sequence[Point], policy: Policy, at_most: int | None = None) -> Point:
    """The point to take, of points in ascending order of value; none below the quality floor.

    quality: the smallest value that downscales nothing. throughput: the smallest that leaves at
    least half of the items whole. `max_tokens_per_item`: the largest value within it. Where memory
    or context force items to `at_most` tokens: the largest value that holds it. How many frames the
    loader keeps is for the user to say, and only raised to the floor.
    """
    allowed = [point for point in points if above_floor(point, policy)]
    if points[0].knob.by_loader:
        default = next(p for p in points if p.value == p.knob.value)
        return default if default in allowed or not allowed else allowed[0]
    # More of an item than the model makes by itself is shown, and for the user to want.
    allowed = [point for point in allowed if not point.beyond_default]
    wanted = _wanted(allowed, policy)
    if at_most is None or wanted.max_tokens <= at_most:
        return wanted
    within = [point for point in allowed if point.max_tokens <= at_most]
    return within[-1] if within else allowed[0]


def levels(frontiers: Iterable[Sequence[Point]], policy: Policy) -> list[int]:
    """Tokens per item to force, one after the other, where the policy's own choice does not do."""
    if policy.max_tokens_per_item is not None:
        return []
    turned = [f for f in frontiers if not f[0].knob.by_loader]
    now = max((choose(points, policy).max_tokens for points in turned), default=0)
    tried = {p.max_tokens for points in turned for p in points if above_floor(p, policy)}
    return sorted((tokens for tokens in tried if tokens < now), reverse=True)


def above_floor(point: Point, policy: Policy) -> bool:
    """Whether it leaves every image its pixels and every video its frames."""
    if point.knob.by_loader:
        return point.least_frames is None or point.least_frames >= policy.min_video_frames
    return point.least_pixels is None or point.least_pixels >= policy.min_image_pixels


def _wanted(points: Sequence[Point], policy: Policy) -> Point:
    """By the policy alone; the default downscales nothing, and so is among the points."""
    if policy.max_tokens_per_item is not None:
        cap = policy.max_tokens_per_item
        most = points[0].knob.value_for_tokens(cap)
        within = [p for p in points if (p.max_tokens <= cap if most is None else p.value <= most)]
        return within[-1] if within else points[0]
    if policy.prefer == "throughput":
        return next(p for p in points if p.share_downscaled <= _THROUGHPUT_SHARE)
    # A cap can also enlarge: the rule that shrinks very slim pictures overshoots.
    return next(p for p in points if not p.items_downscaled and not p.items_enlarged)
