"""The quality floor: what a setting leaves of the smallest picture and the shortest video."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mmcalib.derive.costs import CostTable, ItemCost
from mmcalib.derive.policy import Policy
from mmcalib.domain.knobs import Knob
from mmcalib.domain.shapes import ImageShape, VideoShape

# In which a loader's frames per second are written.
_FPS_STEPS = 100


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
    return min((cost.sampled[0] for cost in _thinned(table.of("video"))), default=None)


def frame_values(knob: Knob, default: CostTable, policy: Policy) -> list[int | float]:
    """The loader's value that keeps `min_video_frames` of every video, where its own does not."""
    least, wanted = least_frames(default), policy.min_video_frames
    if knob.argument != "media_io_kwargs" or least is None or least >= wanted:
        return []
    if knob.path[-1] == "num_frames":
        return [wanted]
    needed = [
        min(wanted, cost.shape.num_frames) / cost.shape.duration_s
        for cost in _thinned(default.of("video"))
        if isinstance(cost.shape, VideoShape) and cost.shape.duration_s > 0
    ]
    return [math.ceil(max(needed) * _FPS_STEPS) / _FPS_STEPS] if needed else []


def _kept(now: ItemCost | None, before: ItemCost) -> float:
    """Negative where nothing is taken away."""
    if now is None:
        return 0.0
    return now.tokens / before.tokens if now.tokens < before.tokens else -1.0


def _thinned(costs: Iterable[ItemCost]) -> list[ItemCost]:
    return [
        cost
        for cost in costs
        if isinstance(cost.shape, VideoShape)
        and cost.sampled
        and cost.sampled[0] < cost.shape.num_frames
    ]
