"""Which point of a knob's frontier the policy takes (R2)."""

from __future__ import annotations

from collections.abc import Sequence

from mmcalib.derive.frontier import Point
from mmcalib.derive.policy import Policy

# Of the items, under `prefer: throughput`: the share that may be downscaled.
_THROUGHPUT_SHARE = 0.5


def choose(points: Sequence[Point], policy: Policy) -> Point:
    """The point to take, of points in ascending order of value.

    quality: the smallest value that downscales nothing. throughput: the smallest that leaves at
    least half of the items whole. `max_tokens_per_item`: the largest value within it. How many
    frames the loader keeps is shown and never chosen: that is for the user to say.
    """
    if points[0].knob.argument == "media_io_kwargs":
        return points[-1]
    if policy.max_tokens_per_item is not None:
        unit = points[0].knob.unit_tokens
        within = [
            p
            for p in points
            if (p.value <= policy.max_tokens_per_item * unit if unit else False)
            or (unit is None and p.max_tokens <= policy.max_tokens_per_item)
        ]
        return within[-1] if within else points[0]
    if policy.prefer == "throughput":
        return next(p for p in points if p.share_downscaled <= _THROUGHPUT_SHARE)
    # A cap can also enlarge: the rule that shrinks very slim pictures overshoots.
    return next(p for p in points if not p.items_downscaled and not p.items_enlarged)
