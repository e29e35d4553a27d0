from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.costs import Basis, ItemCost, cpu_line, mean_cpu_s
from mmcalib.domain.shapes import ImageShape, Shape, VideoShape, weight
from tests.derive.costed import table

SECONDS = st.floats(1e-4, 100)
POINTS = st.lists(st.tuples(st.integers(1, 10**8), SECONDS), min_size=1, max_size=14)
CLIP = VideoShape(10, 1.0, 10.0, 4, 3)


def item(shape: Shape, cpu_s: float = 0.0, count: int = 1) -> ItemCost:
    basis: Basis = "real" if cpu_s else "blank"
    return ItemCost(shape, count, str(shape), 0, 0, 0, 9.0, (), basis, cpu_s)


def images(*sides: int) -> list[ImageShape]:
    return [ImageShape(side, 100) for side in sides]


def test_a_modality_without_a_measured_file_is_left_out() -> None:
    assert mean_cpu_s(table(item(ImageShape(10, 100), 0.1), item(CLIP, count=9))) == (0.1, 1)
    assert mean_cpu_s(table(item(CLIP))) is None


@given(start=st.floats(0, 1), slope=st.floats(1e-9, 1e-3), sides=st.sets(st.integers(1, 5000)))
def test_shapes_that_were_not_measured_are_on_the_line(
    start: float, slope: float, sides: set[int]
) -> None:
    def true(shape: ImageShape) -> float:
        return start + slope * weight(shape)

    measured, others = images(100, 900, 2500), images(*sides - {100, 900, 2500})
    found = mean_cpu_s(
        table(*(item(s, true(s)) for s in measured), *(item(s, count=7) for s in others))
    )
    total = sum(map(true, measured)) + 7 * sum(map(true, others))
    assert found == (pytest.approx(total / (3 + 7 * len(others)), rel=1e-6), 3)


@given(POINTS)
def test_no_item_costs_less_than_nothing_or_less_for_being_larger(
    points: list[tuple[int, float]],
) -> None:
    line = cpu_line(points)
    found = [line(w) for w in (0, 1, 10**4, 10**8)]
    assert found[0] >= 0
    assert found == sorted(found)
    most = max(seconds for _, seconds in points)
    assert line(min(w for w, _ in points)) <= most * (1 + 1e-6)
