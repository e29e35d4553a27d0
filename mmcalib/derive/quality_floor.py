"""The quality floor: what a setting leaves of the smallest picture and the shortest video."""

from __future__ import annotations

import math

from mmcalib.derive.costs import CostTable, ItemCost
from mmcalib.domain.knobs import thinned
from mmcalib.domain.shapes import ImageShape


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
