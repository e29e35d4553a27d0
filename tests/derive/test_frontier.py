from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.census.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.derive import frontier
from mmcalib.derive.choice import choose
from mmcalib.derive.costs import CostTable, ItemCost
from mmcalib.derive.frontier import Point
from mmcalib.derive.policy import Policy
from mmcalib.engine.messages import Knob
from mmcalib.engine.setting import DEFAULT, Setting

UNIT = 28 * 28
AREA = Knob(
    "images_kwargs.size.longest_edge",
    "image",
    ("images_kwargs", "size", "longest_edge"),
    16384 * UNIT,
    UNIT,
    {"shortest_edge": 4 * UNIT},
)
TILES = Knob("max_dynamic_patch", "image", ("max_dynamic_patch",), 12, None)

EDGES = st.integers(1, 6000)
SHAPES = st.lists(st.tuples(EDGES, EDGES), min_size=1, max_size=12, unique=True)
CAPS = st.none() | st.integers(1, 40_000)


def cost(shape: Shape, tokens: int, count: int = 1) -> ItemCost:
    return ItemCost(shape, count, f"{shape}.jpg", tokens, tokens, 0, 0.0, (), "blank")


def table(*costs: ItemCost, setting: Setting = DEFAULT) -> CostTable:
    return CostTable(setting, {c.shape: c for c in costs})


def sized(sizes: list[tuple[int, int]]) -> CostTable:
    return table(*(cost(ImageShape(w, h), min(16384, max(1, w * h // UNIT))) for w, h in sizes))


@given(SHAPES, CAPS, st.sampled_from([AREA, TILES]))
def test_candidates_ascend_once_each_and_end_at_the_default(sizes, cap, knob) -> None:
    values = frontier.candidates(knob, sized(sizes), Policy(max_tokens_per_item=cap))
    assert values == sorted(set(values))
    assert values[-1] == knob.value
    assert values[0] >= 1


@given(SHAPES)
def test_candidates_hold_the_area_at_which_the_largest_item_just_fits(sizes) -> None:
    grid = max(max(1, round(w / 28)) * max(1, round(h / 28)) for w, h in sizes)
    if 4 <= grid < 16384:
        assert grid * UNIT in frontier.candidates(AREA, sized(sizes), Policy())


@given(SHAPES, st.integers(1, 16383))
def test_the_cap_that_the_user_names_is_tried(sizes, cap: int) -> None:
    values = frontier.candidates(AREA, sized(sizes), Policy(max_tokens_per_item=cap))
    assert cap * UNIT in values


def test_a_cap_above_every_item_is_not_tried_unless_asked_for() -> None:
    assert frontier.candidates(AREA, sized([(280, 280)]), Policy()) == [100 * UNIT, AREA.value]


def test_tiles_are_tried_one_by_one() -> None:
    found = frontier.candidates(TILES, sized([(64, 64)]), Policy())
    assert found == list(range(1, 13))


def test_a_setting_nests_the_value_beside_its_companions() -> None:
    assert frontier.at(AREA, 100 * UNIT) == Setting(
        {"images_kwargs": {"size": {"longest_edge": 100 * UNIT, "shortest_edge": 4 * UNIT}}}
    )
    assert frontier.at(TILES, 3) == Setting({"max_dynamic_patch": 3})


def test_a_companion_never_exceeds_the_value() -> None:
    size = frontier.at(AREA, UNIT).mm_processor_kwargs["images_kwargs"]["size"]
    assert size == {"longest_edge": UNIT, "shortest_edge": UNIT}


def test_the_default_value_is_the_default_setting() -> None:
    assert frontier.at(AREA, AREA.value) == DEFAULT


def test_merging_keeps_each_knobs_scope() -> None:
    video = replace(
        AREA, modality="video", path=("videos_kwargs", "size", "longest_edge"), companions={}
    )
    tiles = Knob("num_crops", "image", ("images_kwargs", "num_crops"), 16, None)
    parts = [
        frontier.at(AREA, 8 * UNIT),
        frontier.at(video, 9 * UNIT),
        frontier.at(tiles, 2),
        Setting(media_io_kwargs={"video": {"num_frames": 8}}),
    ]
    merged = frontier.merged(parts)
    assert merged == Setting(
        {
            "images_kwargs": {
                "size": {"longest_edge": 8 * UNIT, "shortest_edge": 4 * UNIT},
                "num_crops": 2,
            },
            "videos_kwargs": {"size": {"longest_edge": 9 * UNIT}},
        },
        {"video": {"num_frames": 8}},
    )
    assert merged.key == frontier.merged(parts[::-1]).key
    assert parts[0] == frontier.at(AREA, 8 * UNIT), "the parts are not changed by merging"
    assert frontier.merged([]) == DEFAULT


def test_exceeding_names_what_an_area_cap_may_change() -> None:
    small, large = ImageShape(280, 280), ImageShape(560, 280)
    default = table(
        cost(small, 100),
        cost(large, 200),
        cost(VideoShape(8, 8.0, 1.0, 5600, 5600), 9),
        cost(AudioShape(8000, 8000), 9),
    )
    assert frontier.exceeding(AREA, 100 * UNIT, default) == [large]
    assert frontier.exceeding(AREA, 200 * UNIT, default) == []
    assert frontier.exceeding(TILES, 12, default) == [small, large]


def test_a_point_counts_items_not_shapes() -> None:
    a, b = ImageShape(280, 280), ImageShape(560, 280)
    default = table(cost(a, 100, count=3), cost(b, 200, count=1))
    capped = table(
        cost(a, 100, count=3), cost(b, 50, count=1), setting=frontier.at(AREA, 50 * UNIT)
    )
    point = frontier.point(AREA, 50 * UNIT, capped, default)
    assert (point.items, point.items_downscaled, point.share_downscaled) == (4, 1, 0.25)
    assert (point.worst_retention, point.max_tokens, point.p50_tokens) == (0.25, 100, 100)
    assert point.setting == frontier.at(AREA, 50 * UNIT)


def test_the_default_downscales_nothing() -> None:
    default = table(cost(ImageShape(280, 280), 100))
    point = frontier.point(AREA, AREA.value, default, default)
    assert (point.share_downscaled, point.worst_retention) == (0.0, 1.0)


def test_an_item_refused_under_a_setting_keeps_nothing() -> None:
    """Else the setting that refuses most would look like the one that harms least."""
    a, b = ImageShape(280, 280), ImageShape(560, 280)
    default = table(cost(a, 100), cost(b, 200))
    point = frontier.point(AREA, 50 * UNIT, table(cost(a, 100)), default)
    assert (point.items, point.items_downscaled, point.worst_retention) == (2, 1, 0.0)


def points(knob: Knob, *rows: tuple[int, int, int]) -> list[Point]:
    """Of ten items each: (value, largest item's tokens, items downscaled)."""
    return [
        Point(knob, value, frontier.at(knob, value), most, most, 10, down, 0.5 if down else 1.0)
        for value, most, down in rows
    ]


AREAS = points(
    AREA, (256 * UNIT, 256, 8), (512 * UNIT, 510, 5), (1024 * UNIT, 1020, 0), (AREA.value, 1020, 0)
)
TILED = points(TILES, (1, 256, 9), (2, 768, 5), (3, 1024, 0), (12, 1024, 0))


@pytest.mark.parametrize("ladder", [AREAS, TILED], ids=["areas", "tiles"])
def test_quality_takes_the_smallest_value_that_downscales_nothing(ladder: list[Point]) -> None:
    assert choose(ladder, Policy()) is ladder[2]


@pytest.mark.parametrize("ladder", [AREAS, TILED], ids=["areas", "tiles"])
def test_throughput_leaves_half_of_the_items_whole(ladder: list[Point]) -> None:
    assert choose(ladder, Policy(prefer="throughput")) is ladder[1]


@pytest.mark.parametrize(
    ("ladder", "cap", "expected"),
    [
        (AREAS, 512, 1),
        (AREAS, 1023, 1),
        (AREAS, 100_000, 3),
        (AREAS, 1, 0),
        (TILED, 768, 1),
        (TILED, 767, 0),
        (TILED, 1024, 3),
        (TILED, 1, 0),
    ],
)
def test_a_cap_in_tokens_takes_the_largest_value_within_it(
    ladder: list[Point], cap: int, expected: int
) -> None:
    policy = Policy(max_tokens_per_item=cap)
    assert choose(ladder, policy) is ladder[expected]


@given(SHAPES)
def test_the_choice_is_the_same_whatever_the_order_of_the_corpus(sizes) -> None:
    def chosen(order: list[tuple[int, int]]) -> int:
        default = sized(order)
        found = []
        for value in frontier.candidates(AREA, default, Policy()):
            most = value // UNIT
            capped = table(*(replace(c, tokens=min(c.tokens, most)) for c in default.of("image")))
            found.append(frontier.point(AREA, value, capped, default))
        return choose(found, Policy()).value

    assert chosen(sizes) == chosen(sizes[::-1])


FRAMES = Knob(
    "video.fps",
    "video",
    ("video", "fps"),
    2,
    None,
    argument="media_io_kwargs",
    steps=(0.25, 0.5, 1, 2),
)


def test_frames_are_tried_at_the_steps_of_the_knob() -> None:
    assert frontier.candidates(FRAMES, sized([(64, 64)]), Policy()) == [0.25, 0.5, 1, 2]


def test_a_frame_setting_goes_to_the_loader_and_keeps_what_was_given() -> None:
    base = Setting(media_io_kwargs={"video": {"max_duration": 60}})
    setting = frontier.at(FRAMES, 0.5, base)
    assert setting.media_io_kwargs == {"video": {"max_duration": 60, "fps": 0.5}}
    assert setting.mm_processor_kwargs == {}
    assert frontier.at(FRAMES, 2, base) == base


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(prefer="throughput"), Policy(max_tokens_per_item=1)]
)
def test_how_many_frames_are_kept_is_never_chosen(policy: Policy) -> None:
    shape = VideoShape(100, 25.0, 4.0, 640, 480)
    default = table(cost(shape, 1000))
    points = [
        frontier.point(FRAMES, value, table(cost(shape, tokens)), default)
        for value, tokens in ((0.5, 1000), (1, 1000), (2, 1000))
    ]
    assert choose(points, policy).value == 2


def test_the_witness_is_the_costliest_that_should_not_change() -> None:
    default = sized([(2800, 2800), (280, 280), (560, 560)])
    changed = frontier.exceeding(AREA, 1000 * UNIT, default)
    assert frontier.witness(AREA, default, changed) == ImageShape(560, 560)
    assert frontier.witness(AREA, default, [cost.shape for cost in default.costs.values()]) is None


def test_the_stack_of_a_video_s_frames_is_tried_as_well() -> None:
    knob = replace(AREA, modality="video", value=10**9)
    shape = VideoShape(100, 25.0, 4.0, 280, 280)
    clip = replace(cost(shape, 400), sampled=(8, 280, 280))
    values = frontier.candidates(knob, table(clip), Policy())
    assert {100 * UNIT, 8 * 100 * UNIT} <= set(values)
