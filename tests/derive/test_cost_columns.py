from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.costs import CostColumns, CostMap, same_rows, sampled_rows, sampled_tuples
from mmcalib.derive.item_cost import BASES, ItemCost, heaviest
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


@given(CORPORA, CORPORA, st.data())
def test_others_take_the_place_of_equal_shapes(
    costs: list[ItemCost], others: list[ItemCost], data: st.DataObject
) -> None:
    asked: dict[Shape, ItemCost | None] = {cost.shape: cost for cost in others}
    for cost in costs:
        if data.draw(st.booleans()):
            asked[cost.shape] = data.draw(st.sampled_from([None, replace(cost, tokens=99)]))
    expected: dict[Shape, ItemCost | None] = {**{cost.shape: cost for cost in costs}, **asked}
    left = [cost for cost in expected.values() if cost is not None]
    assert list(columns(costs).but(asked)) == sorted(left, key=lambda cost: cost.shape)
    assert list(columns(costs)) == sorted(costs, key=lambda cost: cost.shape)


@given(CORPORA, CORPORA)
def test_places_are_those_of_a_list(costs: list[ItemCost], others: list[ItemCost]) -> None:
    mine = columns(costs).shapes
    theirs = [cost.shape for cost in others]
    listed = list(mine)
    expected = [listed.index(shape) if shape in listed else -1 for shape in theirs]
    assert mine.places(theirs).tolist() == expected
    ordered = Shapes.of("video", theirs)
    assert mine.places(ordered).tolist() == mine.places(list(ordered)).tolist()
    assert [shape in mine for shape in theirs] == [place >= 0 for place in expected]
    assert ImageShape(1, 1) not in mine


def test_a_shape_of_another_modality_stands_nowhere() -> None:
    """A clip has a width and a height too, and a sound has neither."""
    pictures = Shapes.of("image", [ImageShape(64, 48)])
    others: list[Shape] = [VideoShape(8, 8.0, 1.0, 64, 48), AudioShape(64, 48)]
    assert pictures.places([*others, ImageShape(64, 48)]).tolist() == [-1, -1, 0]
    costs = [ItemCost(ImageShape(64, 48), 1, "a", 4, 4, 1, 0.0, (), "blank")]
    found = CostColumns.of("image", costs)
    assert list(found.but(dict.fromkeys(others))) == costs
    assert not any(shape in CostMap({"image": found}) for shape in others)


@given(st.lists(TUPLES, max_size=6))
def test_what_was_sampled_is_told_apart(tuples: list[tuple[int, ...]]) -> None:
    rows = sampled_rows(tuples)
    assert list(sampled_tuples(rows)) == tuples
    turned = tuples[::-1]
    expected = [one == other for one, other in zip(tuples, turned, strict=True)]
    assert same_rows(rows, sampled_rows(turned)).tolist() == expected
