"""A look whose module takes longer to import than an item may take."""

import time

from mmcalib.domain.items import Item, ProbedMedia
from mmcalib.domain.shapes import ImageShape

time.sleep(1.5)


def look(_: Item) -> ProbedMedia:
    return ImageShape(1, 1)
