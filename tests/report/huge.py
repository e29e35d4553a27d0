"""A calibration of so many shapes as a million items may have."""

import random

from mmcalib.admission.calibration import Calibration
from mmcalib.domain.shapes import ImageShape
from mmcalib.results.costs import KnownCost
from tests.report.example import calibration, changed


def huge(shapes: int) -> Calibration:
    """The example with `shapes` distinct sizes of images, from slivers to posters."""
    draw = random.Random(0)
    sizes: set[tuple[int, int]] = set()
    while len(sizes) < shapes:
        sizes.add((int(2 ** draw.uniform(3, 14)), int(2 ** draw.uniform(3, 14))))
    known = [
        KnownCost.model_construct(
            shape=ImageShape(width, height), tokens=tokens, embeds=tokens, basis="blank", items=1
        )
        for width, height in sorted(sizes)
        for tokens in [min(1269, max(4, width * height // 784))]
    ]
    costly = changed(calibration(), "costs.modalities.image", known=known)
    return changed(costly, "corpus.modalities.image", items=1_000_000, unique_shapes=shapes)
