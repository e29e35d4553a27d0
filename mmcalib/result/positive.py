"""Sizes that divide others: none of them is nothing, whoever wrote the file."""

from __future__ import annotations

from typing import Final, TypeVar

from pydantic import AfterValidator

T = TypeVar("T")

# Fields of shapes, and of the rules that bound what shapes cost.
_NAMES: Final = (
    *("width_px", "height_px", "num_frames", "fps", "num_samples", "sample_rate_hz"),
    *("factor_px", "max_px", "max_aspect", "together", "rate_hz"),
)


def _positive(one: T) -> T:
    for name in _NAMES:
        if getattr(one, name, 1) <= 0:
            raise ValueError(f"{name} must be above 0")
    if area := getattr(one, "area", None):
        _positive(area)
    return one


POSITIVE: Final = AfterValidator(_positive)
