"""A census as a few sizes with their shares, for what makes up load."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mmcalib.domain.shapes import ImageShape, VideoShape

# A command line that a person can still read.
MOST_BUCKETS: Final = 24


@dataclass(frozen=True, slots=True)
class SizedItems:
    """So many items of a shape that take so many tokens each."""

    shape: ImageShape | VideoShape
    items: int
    tokens: int


def buckets(found: Sequence[SizedItems]) -> Iterator[SizedItems]:
    """Few enough, in the order of their tokens, with all items. The costliest shape stays by
    itself; of the others, where they are too many, neighbours are one: that whose tokens are
    nearest to their mean, so that the load as a whole is as heavy.
    """
    if not found:
        return
    *ordered, costliest = sorted(
        found, key=lambda one: (one.tokens, one.shape.width_px, one.shape.height_px)
    )
    each = math.ceil(len(ordered) / (MOST_BUCKETS - 1)) or 1
    for start in range(0, len(ordered), each):
        group = ordered[start : start + each]
        items = sum(one.items for one in group)
        mean = sum(one.items * one.tokens for one in group) / items
        middle = min(group, key=lambda one: abs(one.tokens - mean))
        yield SizedItems(middle.shape, items, middle.tokens)
    yield costliest
