"""How token counts spread over the items of a modality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mmcalib.derive.costs import ItemCost, heaviest


class Weighed(Protocol):
    """Tokens that `count` items take each."""

    @property
    def tokens(self) -> int: ...

    @property
    def count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ItemsOfCost:
    """Items of which no more is kept than what they cost."""

    tokens: int
    count: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Tokens per item, each item counted; `exemplar` is the path of the heaviest."""

    items: int
    unique_shapes: int
    min: int
    p50: int
    p90: int
    p99: int
    max: int
    exemplar: str


def spread(costs: Sequence[ItemCost]) -> Spread:
    """The spread of at least one cost, weighted by how many items have it."""
    most = heaviest(costs)
    if most is None:
        raise ValueError("no costs to spread")
    return Spread(
        items=sum(cost.count for cost in costs),
        unique_shapes=len(costs),
        min=min(cost.tokens for cost in costs),
        p50=quantile(costs, 0.50),
        p90=quantile(costs, 0.90),
        p99=quantile(costs, 0.99),
        max=max(cost.tokens for cost in costs),
        exemplar=most.exemplar,
    )


def quantile(costs: Sequence[Weighed], share: float) -> int:
    """The smallest token count that at least `share` of the items do not exceed."""
    needed = math.ceil(round(share * sum(cost.count for cost in costs), 9))
    covered = 0
    for cost in sorted(costs, key=lambda cost: cost.tokens):
        covered += cost.count
        if covered >= needed:
            return cost.tokens
    return 0
