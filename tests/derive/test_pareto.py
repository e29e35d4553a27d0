from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive import frontier
from mmcalib.derive.frontier import Point, Rated, dominated
from mmcalib.domain.knobs import Knob
from tests.derive.costed import AREA, CROPS, FRAMES, UNIT


def point(
    value: float, most: int, downscaled: int = 0, worst: float = 1.0, knob: Knob = AREA
) -> Point:
    mean = 1 - downscaled / 10 * (1 - worst)
    setting = frontier.at(knob, value)
    return Point(knob, value, setting, most, most, 10, downscaled, worst, mean_retention=mean)


CAPPED, FITS = point(100 * UNIT, 100, 3, 0.5), point(200 * UNIT, 200)
DEFAULT = point(AREA.value, 200)

POINTS = st.lists(
    st.builds(
        Rated,
        st.builds(point, st.just(UNIT), st.integers(1, 3), st.integers(0, 2), st.just(0.5)),
        st.integers(1, 3),
        st.none() | st.integers(1, 3),
    ),
    min_size=1,
    max_size=6,
)


def test_the_default_is_beaten_by_the_cap_that_takes_nothing_and_reserves_less() -> None:
    rated = [Rated(CAPPED, 100), Rated(FITS, 200), Rated(DEFAULT, 16384)]
    assert dominated(rated) == [False, False, True]


def test_equals_do_not_beat_each_other() -> None:
    assert dominated([Rated(FITS, 200), Rated(FITS, 200)]) == [False, False]


def test_where_memory_was_rehearsed_more_kv_tokens_beat() -> None:
    assert dominated([Rated(FITS, 200, 900), Rated(DEFAULT, 200, 800)]) == [False, True]
    assert dominated([Rated(FITS, 200, 900), Rated(CAPPED, 200, 950)]) == [False, False]


def test_another_knob_of_the_same_modality_beats_and_other_modalities_do_not() -> None:
    area = replace(AREA, modality="video")
    fewer = point(1, 200, 4, 0.5, knob=FRAMES)
    smaller = point(300 * UNIT, 200, 2, 0.5, knob=area)
    assert dominated([Rated(fewer, 500), Rated(smaller, 400)]) == [True, False]
    images = replace(smaller, knob=AREA)
    assert dominated([Rated(fewer, 500), Rated(images, 400)]) == [False, False]


def test_more_detail_than_by_default_is_not_judged_by_what_it_costs() -> None:
    off, on = point(0, 256, knob=CROPS), point(4, 1280, knob=CROPS)
    assert dominated([Rated(off, 256), Rated(on, 1280)]) == [False, False]


@given(POINTS)
def test_someone_is_never_beaten(rated: list[Rated]) -> None:
    alike = [replace(one, kv_tokens=None) for one in rated]
    assert not all(dominated(alike))


@given(POINTS)
def test_the_order_of_points_decides_nothing(rated: list[Rated]) -> None:
    assert dominated(rated) == dominated(rated[::-1])[::-1]
