"""How many of a number of things a share of them is."""

from __future__ import annotations

import math


def least_covering(share: float, count: int) -> int:
    """The least number that is at least this share of `count`."""
    # The product of a decimal share and a count may lie a rounding error above a whole number.
    return math.ceil(round(share * count, 9))
