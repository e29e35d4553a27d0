import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain.shape_columns import Shapes
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape, weight
from mmcalib.limits.costs import (
    BASES,
    Basis,
    CostColumns,
    CostMap,
    ItemCost,
    cpu_line,
    find_heaviest,
    mean_cpu_s,
    quantile,
    token_quantiles,
)
from tests.limits.costed import cost, table

SMALL = st.integers(1, 4)
TUPLES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
VIDEOS = st.builds(VideoShape, SMALL, st.floats(1, 60), st.floats(0.1, 9), SMALL, SMALL)


def items(basis: Basis) -> st.SearchStrategy[ItemCost]:
    figures = (SMALL, SMALL, SMALL, st.floats(0, 1), TUPLES)
    cpu_s = st.just(0.5 if basis == "real" else 0.0)
    return st.builds(ItemCost, VIDEOS, SMALL, st.text(max_size=2), *figures, st.just(basis), cpu_s)


ITEMS = st.sampled_from(BASES).flatmap(items)
CORPORA = st.lists(ITEMS, max_size=8, unique_by=lambda cost: cost.shape)


@given(CORPORA)
def test_every_item_comes_out_as_it_went_in(costs: list[ItemCost]) -> None:
    found = CostColumns.from_costs("video", costs)
    ordered = sorted(costs, key=lambda cost: cost.shape)
    assert list(found) == [found[row] for row in range(len(costs))] == ordered
    assert found.item_count() == sum(cost.count for cost in costs)
    assert dict(CostMap({"video": found})) == {cost.shape: cost for cost in costs}
    assert found.heaviest == find_heaviest(ordered)


@given(CORPORA, st.data())
def test_some_rows_are_those_items(costs: list[ItemCost], data: st.DataObject) -> None:
    found = CostColumns.from_costs("video", costs)
    mask = data.draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs)))
    kept = [cost for cost, taken in zip(found, mask, strict=True) if taken]
    assert list(found.take(np.array(mask, dtype=bool))) == kept


def test_a_shape_of_another_modality_stands_nowhere() -> None:
    """A clip has a width and a height too, and a sound has neither."""
    pictures = Shapes.from_shapes("image", [ImageShape(64, 48)])
    others: list[Shape] = [VideoShape(8, 8.0, 1.0, 64, 48), AudioShape(64, 48)]
    assert pictures.positions([*others, ImageShape(64, 48)]).tolist() == [-1, -1, 0]
    costs = [cost(ImageShape(64, 48), 4, tensor_bytes=1)]
    found = CostColumns.from_costs("image", costs)
    assert list(found.replace_costs(dict.fromkeys(others))) == costs
    assert not any(shape in CostMap({"image": found}) for shape in others)


WEIGHTED = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=12)


@given(WEIGHTED, st.integers(1, 100))
def test_a_quantile_is_that_of_the_items_written_out(pairs, per_cent: int) -> None:
    items = sorted(tokens for tokens, count in pairs for _ in range(count))
    naive = items[math.ceil(per_cent * len(items) / 100) - 1]
    assert quantile([t for t, _ in pairs], [n for _, n in pairs], per_cent / 100) == naive


@given(WEIGHTED)
def test_the_spread_is_ordered(pairs) -> None:
    images = (cost(ImageShape(n, 1), *pair) for n, pair in enumerate(pairs, start=1))
    found = token_quantiles(table(*images).columns_of("image"))
    assert list(found) == ["min", "p50", "p90", "p99", "max"]
    assert list(found.values()) == sorted(found.values())
    assert (found["min"], found["max"]) == (min(t for t, _ in pairs), max(t for t, _ in pairs))


POINTS = st.lists(st.tuples(st.integers(1, 10**8), st.floats(1e-4, 100)), min_size=1, max_size=14)
CLIP = VideoShape(10, 1.0, 10.0, 4, 3)


def timed(shape: Shape, cpu_s: float = 0.0, count: int = 1) -> ItemCost:
    basis: Basis = "real" if cpu_s else "blank"
    return cost(shape, 0, count, process_s=9.0, basis=basis, cpu_s=cpu_s)


def test_a_modality_without_a_measured_file_is_left_out() -> None:
    assert mean_cpu_s(table(timed(ImageShape(10, 100), 0.1), timed(CLIP, count=9))) == (0.1, 1)
    assert mean_cpu_s(table(timed(CLIP))) is None


@given(start=st.floats(0, 1), slope=st.floats(1e-9, 1e-3), sides=st.sets(st.integers(1, 5000)))
def test_shapes_that_were_not_measured_are_on_the_line(start: float, slope: float, sides) -> None:
    def true(shape: ImageShape) -> float:
        return start + slope * weight(shape)

    measured = [ImageShape(side, 100) for side in (100, 900, 2500)]
    others = [ImageShape(side, 100) for side in sides - {100, 900, 2500}]
    found = mean_cpu_s(
        table(*(timed(s, true(s)) for s in measured), *(timed(s, count=7) for s in others))
    )
    total = sum(map(true, measured)) + 7 * sum(map(true, others))
    assert found == (pytest.approx(total / (3 + 7 * len(others)), rel=1e-6), 3)


@given(POINTS)
def test_no_item_costs_less_than_nothing_or_less_for_being_larger(points) -> None:
    line = cpu_line(points)
    found = [line(w) for w in (0, 1, 10**4, 10**8)]
    assert found[0] >= 0
    assert found == sorted(found)
    most = max(seconds for _, seconds in points)
    assert line(min(w for w, _ in points)) <= most * (1 + 1e-6)
