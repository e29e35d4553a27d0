"""How token counts spread over the items of a modality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmcalib.derive.costs import CostColumns
from mmcalib.domain.knobs import least_covering
from mmcalib.domain.shape_columns import Column


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


def spread(costs: CostColumns) -> Spread:
    """The spread of at least one cost, weighted by how many items have it."""
    most = costs.heaviest
    if most is None:
        raise ValueError("no costs to spread")
    tokens, counts = costs.tokens, costs.counts
    return Spread(
        items=costs.items(),
        unique_shapes=len(costs),
        min=int(tokens.min()),
        p50=quantile(tokens, counts, 0.50),
        p90=quantile(tokens, counts, 0.90),
        p99=quantile(tokens, counts, 0.99),
        max=int(tokens.max()),
        exemplar=most.exemplar,
    )


def quantile(tokens: Sequence[int] | Column, counts: Sequence[int] | Column, share: float) -> int:
    """The smallest token count that at least `share` of the items do not exceed; `counts` items
    have each. 0 of none.
    """
    if not len(tokens):
        return 0
    order = np.argsort(tokens, kind="stable")
    covered = np.cumsum(np.asarray(counts)[order])
    needed = least_covering(share, int(covered[-1]))
    return int(np.asarray(tokens)[order][covered.searchsorted(needed)])
