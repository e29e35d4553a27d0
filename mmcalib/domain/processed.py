"""What a processor makes of an item on a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One field of a processed item: a tensor, or a list by its length."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Processed:
    """What a processor made of one item, without its loading. `peak_bytes` of the device are above
    what was held before; None on one that has no memory of its own.
    """

    tokens: int
    embeds: int
    forms: tuple[TensorSpec, ...]
    seconds: float
    peak_bytes: int | None
