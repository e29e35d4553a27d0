from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.costs import CostColumns
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.percentiles import quantile, spread
from mmcalib.domain.shapes import ImageShape

WEIGHTED = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=12)


def costs(pairs: list[tuple[int, int]]) -> CostColumns:
    every = [
        ItemCost(
            ImageShape(number + 1, 1), count, f"{number}.jpg", tokens, tokens, 0, 0.0, (), "real"
        )
        for number, (tokens, count) in enumerate(pairs)
    ]
    return CostColumns.of("image", every)


@given(WEIGHTED, st.integers(1, 100))
def test_a_quantile_is_that_of_the_items_written_out(pairs, per_cent: int) -> None:
    items = sorted(tokens for tokens, count in pairs for _ in range(count))
    naive = items[math.ceil(per_cent * len(items) / 100) - 1]
    assert quantile([t for t, _ in pairs], [n for _, n in pairs], per_cent / 100) == naive


@given(WEIGHTED)
def test_the_spread_is_ordered_and_counts_every_item(pairs) -> None:
    found = spread(costs(pairs))
    assert found.min <= found.p50 <= found.p90 <= found.p99 <= found.max
    assert (found.min, found.max) == (min(t for t, _ in pairs), max(t for t, _ in pairs))
    assert found.items == sum(count for _, count in pairs)
    assert found.unique_shapes == len(pairs)


def test_many_light_items_outweigh_a_heavy_one() -> None:
    found = spread(costs([(16384, 1), (300, 99)]))
    assert (found.p50, found.p90, found.p99, found.max) == (300, 300, 300, 16384)
    assert found.exemplar == "0.jpg"


def test_nothing_has_no_spread() -> None:
    with pytest.raises(ValueError, match="no costs"):
        spread(CostColumns.of("image", ()))
