from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.costs import CostTable
from mmcalib.derive.frontier import affected, witness
from mmcalib.derive.policy import Policy
from mmcalib.domain.knobs import Knob, Value
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from tests.derive.costed import AREA, CAPS, FRAMES, SHAPES, TILES, UNIT, cost, sized, table


def candidates(knob: Knob, default: CostTable, policy: Policy) -> list[Value]:
    return knob.values(default.of(knob.modality), policy)


@given(SHAPES, CAPS, st.sampled_from([AREA, TILES]))
def test_candidates_ascend_once_each_and_end_at_the_default(sizes, cap, knob) -> None:
    values = candidates(knob, sized(sizes), Policy(max_tokens_per_item=cap))
    assert values == sorted(set(values))
    assert values[-1] == knob.value
    assert values[0] >= 1


@given(SHAPES)
def test_candidates_hold_the_area_at_which_the_largest_item_just_fits(sizes) -> None:
    grid = max(max(1, round(w / 28)) * max(1, round(h / 28)) for w, h in sizes)
    if 4 <= grid < 16384:
        assert grid * UNIT in candidates(AREA, sized(sizes), Policy())


@given(SHAPES, st.integers(1, 16383))
def test_the_cap_that_the_user_names_is_tried(sizes, cap: int) -> None:
    values = candidates(AREA, sized(sizes), Policy(max_tokens_per_item=cap))
    assert cap * UNIT in values


def test_a_cap_above_every_item_is_not_tried_unless_asked_for() -> None:
    *tried, last = candidates(AREA, sized([(280, 280)]), Policy())
    assert max(tried) == 100 * UNIT
    assert last == AREA.value


def test_tiles_are_tried_one_by_one() -> None:
    found = candidates(TILES, sized([(64, 64)]), Policy())
    assert found == list(range(1, 13))


def test_an_area_cap_may_change_what_exceeds_it() -> None:
    small, large = ImageShape(280, 280), ImageShape(560, 280)
    default = table(
        cost(small, 100),
        cost(large, 200),
        cost(VideoShape(8, 8.0, 1.0, 5600, 5600), 9),
        cost(AudioShape(8000, 8000), 9),
    )
    assert affected(AREA, 100 * UNIT, default) == [large]
    assert affected(AREA, 200 * UNIT, default) == []
    assert affected(TILES, 12, default) == [small, large]


def test_frames_are_tried_at_the_steps_of_the_knob() -> None:
    assert candidates(FRAMES, sized([(64, 64)]), Policy()) == [0.25, 0.5, 1, 2]


def test_the_witness_is_the_costliest_that_should_not_change() -> None:
    default = sized([(2800, 2800), (280, 280), (560, 560)])
    changed = affected(AREA, 1000 * UNIT, default)
    assert witness(AREA, default, changed) == ImageShape(560, 560)
    assert witness(AREA, default, [cost.shape for cost in default.costs.values()]) is None


def test_the_stack_of_a_video_s_frames_is_tried_as_well() -> None:
    knob = replace(AREA, modality="video", value=10**9)
    shape = VideoShape(100, 25.0, 4.0, 280, 280)
    clip = replace(cost(shape, 400), sampled=(8, 280, 280))
    values = candidates(knob, table(clip), Policy())
    assert {100 * UNIT, 8 * 100 * UNIT} <= set(values)


def test_frames_are_tried_smaller_than_pictures() -> None:
    clip = replace(cost(VideoShape(300, 30.0, 10.0, 560, 560), 400), sampled=(20, 560, 560))
    found = candidates(replace(AREA, modality="video"), table(clip), Policy())
    assert found[:3] == [32 * UNIT, 64 * UNIT, 128 * UNIT]
    assert candidates(AREA, sized([(5600, 5600)]), Policy())[0] >= 256 * UNIT


@given(SHAPES)
def test_there_are_eight_values_where_the_corpus_has_room_for_them(sizes) -> None:
    largest = max(max(1, round(w / 28)) * max(1, round(h / 28)) for w, h in sizes)
    if largest >= 8 * 4:
        assert len(candidates(AREA, sized(sizes), Policy())) >= 8
