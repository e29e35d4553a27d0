"""Which points of a frontier another point of the same modality beats (R2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.derive.frontier import Point


@dataclass(frozen=True, slots=True)
class Rated:
    """A point with what it costs: vLLM's encoder budget for it and, once it was rehearsed, the
    tokens that the KV cache holds.
    """

    point: Point
    budget_tokens: int
    kv_tokens: int | None = None


def dominated(rated: Sequence[Rated]) -> list[bool]:
    """Per point whether another one of its modality, whatever the knob, is nowhere worse in what
    items keep and what they cost, and better in one of the two. A value that makes more of items
    than the default cannot be compared by what they keep, and never is.
    """
    return [
        not one.point.beyond_default
        and any(
            _beats(other, one)
            for other in rated
            if other.point.knob.modality == one.point.knob.modality
        )
        for one in rated
    ]


def _beats(better: Rated, worse: Rated) -> bool:
    pairs = list(zip(_marks(better), _marks(worse), strict=True))
    if better.kv_tokens is not None and worse.kv_tokens is not None:
        pairs.append((better.kv_tokens, worse.kv_tokens))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def _marks(rated: Rated) -> tuple[float, ...]:
    """The higher the better."""
    point = rated.point
    kept = -point.share_downscaled, point.mean_retention, point.worst_retention
    return *kept, -point.max_tokens, -rated.budget_tokens
