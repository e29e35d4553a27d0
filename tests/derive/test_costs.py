from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.costs import BASES, CostColumns, CostMap, ItemCost, heaviest, quantile, spread
from mmcalib.domain.shape_columns import Shapes
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape

SMALL = st.integers(1, 4)
TUPLES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
VIDEOS = st.builds(VideoShape, SMALL, st.floats(1, 60), st.floats(0.1, 9), SMALL, SMALL)


@st.composite
def items(draw: st.DrawFn) -> ItemCost:
    basis = draw(st.sampled_from(BASES))
    return ItemCost(
        draw(VIDEOS),
        draw(SMALL),
        draw(st.text(max_size=2)),
        draw(SMALL),
        draw(SMALL),
        draw(SMALL),
        draw(st.floats(0, 1)),
        draw(TUPLES),
        basis,
        0.5 if basis == "real" else 0.0,
    )


CORPORA = st.lists(items(), max_size=8, unique_by=lambda cost: cost.shape)


def columns(costs: list[ItemCost]) -> CostColumns:
    return CostColumns.of("video", costs)


@given(CORPORA)
def test_every_item_comes_out_as_it_went_in(costs: list[ItemCost]) -> None:
    found = columns(costs)
    ordered = sorted(costs, key=lambda cost: cost.shape)
    assert list(found) == [found[row] for row in range(len(costs))] == ordered
    assert found.items() == sum(cost.count for cost in costs)
    assert dict(CostMap({"video": found})) == {cost.shape: cost for cost in costs}
    assert found.heaviest == heaviest(ordered)


@given(CORPORA, st.data())
def test_some_rows_are_those_items(costs: list[ItemCost], data: st.DataObject) -> None:
    found = columns(costs)
    mask = data.draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs)))
    kept = [cost for cost, taken in zip(found, mask, strict=True) if taken]
    assert list(found.take(np.array(mask, dtype=bool))) == kept
    assert list(found[1:]) == list(found)[1:]


def test_a_shape_of_another_modality_stands_nowhere() -> None:
    """A clip has a width and a height too, and a sound has neither."""
    pictures = Shapes.of("image", [ImageShape(64, 48)])
    others: list[Shape] = [VideoShape(8, 8.0, 1.0, 64, 48), AudioShape(64, 48)]
    assert pictures.places([*others, ImageShape(64, 48)]).tolist() == [-1, -1, 0]
    costs = [ItemCost(ImageShape(64, 48), 1, "a", 4, 4, 1, 0.0, (), "blank")]
    found = CostColumns.of("image", costs)
    assert list(found.but(dict.fromkeys(others))) == costs
    assert not any(shape in CostMap({"image": found}) for shape in others)


WEIGHTED = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=12)


@given(WEIGHTED, st.integers(1, 100))
def test_a_quantile_is_that_of_the_items_written_out(pairs, per_cent: int) -> None:
    items = sorted(tokens for tokens, count in pairs for _ in range(count))
    naive = items[math.ceil(per_cent * len(items) / 100) - 1]
    assert quantile([t for t, _ in pairs], [n for _, n in pairs], per_cent / 100) == naive


def images_of(pairs: list[tuple[int, int]]) -> CostColumns:
    every = [
        ItemCost(
            ImageShape(number + 1, 1), count, f"{number}.jpg", tokens, tokens, 0, 0.0, (), "real"
        )
        for number, (tokens, count) in enumerate(pairs)
    ]
    return CostColumns.of("image", every)


@given(WEIGHTED)
def test_the_spread_is_ordered_and_counts_every_item(pairs) -> None:
    found = spread(images_of(pairs))
    assert found.min <= found.p50 <= found.p90 <= found.p99 <= found.max
    assert (found.min, found.max) == (min(t for t, _ in pairs), max(t for t, _ in pairs))
    assert found.items == sum(count for _, count in pairs)
    assert found.unique_shapes == len(pairs)
