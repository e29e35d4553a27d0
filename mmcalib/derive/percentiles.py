"""How token counts spread over the items of a modality."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmcalib.derive.costs import CostColumns
from mmcalib.domain.knobs import least_covering
from mmcalib.domain.model import Quantile
from mmcalib.domain.shape_columns import Column


def spread(costs: CostColumns) -> dict[Quantile, int]:
    """Tokens per item, each item counted, of at least one."""
    tokens, counts = costs.tokens, costs.counts
    return {
        "min": int(tokens.min()),
        "p50": quantile(tokens, counts, 0.50),
        "p90": quantile(tokens, counts, 0.90),
        "p99": quantile(tokens, counts, 0.99),
        "max": int(tokens.max()),
    }


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
