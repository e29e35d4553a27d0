"""A calibration of so many shapes as a million items may have."""

import random

from mmcalib.admission.calibration import Calibration
from mmcalib.domain.shapes import ImageShape
from mmcalib.results.costs import KnownCost
from tests.report.example import calibration


def huge(shapes: int) -> Calibration:
    """The example with `shapes` distinct sizes of images, from slivers to posters."""
    draw = random.Random(0)
    sizes: set[tuple[int, int]] = set()
    while len(sizes) < shapes:
        sizes.add((int(2 ** draw.uniform(3, 14)), int(2 ** draw.uniform(3, 14))))
    found = calibration()
    known = [
        KnownCost.model_construct(
            shape=ImageShape(width, height), tokens=tokens, embeds=tokens, basis="blank", items=1
        )
        for width, height in sorted(sizes)
        for tokens in [min(1269, max(4, width * height // 784))]
    ]
    part = found.costs.modalities["image"].model_copy(update={"known": known})
    modalities = {**found.costs.modalities, "image": part}
    images = found.corpus.modalities["image"].model_copy(
        update={"items": 1_000_000, "unique_shapes": shapes}
    )
    corpus = found.corpus.model_copy(
        update={"modalities": {**found.corpus.modalities, "image": images}}
    )
    costs = found.costs.model_copy(update={"modalities": modalities})
    return found.model_copy(update={"costs": costs, "corpus": corpus})
