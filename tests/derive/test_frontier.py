from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from mmcalib.derive import frontier
from mmcalib.derive.frontier import Point, choose
from mmcalib.derive.policy import Policy
from mmcalib.domain.knobs import DEFAULT, Knob, Setting, TileCap, merged_settings
from mmcalib.domain.shapes import ImageShape, VideoShape
from tests.derive.costed import AREA, CROPS, FRAMES, SHAPES, TILES, UNIT, cost, sized, table


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
    video = replace(AREA, modality="video", path=("videos_kwargs", "size", "longest_edge"))
    tiles = TileCap(path=("images_kwargs", "num_crops"), value=16)
    parts = [
        frontier.at(AREA, 8 * UNIT),
        frontier.at(video, 9 * UNIT),
        frontier.at(tiles, 2),
        Setting(media_io_kwargs={"video": {"num_frames": 8}}),
    ]
    together = merged_settings(parts)
    assert together == Setting(
        {
            "images_kwargs": {
                "size": {"longest_edge": 8 * UNIT, "shortest_edge": 4 * UNIT},
                "num_crops": 2,
            },
            "videos_kwargs": {"size": {"longest_edge": 9 * UNIT, "shortest_edge": 4 * UNIT}},
        },
        {"video": {"num_frames": 8}},
    )
    assert together.key == merged_settings(parts[::-1]).key
    assert parts[0] == frontier.at(AREA, 8 * UNIT), "the parts are not changed by merging"
    assert merged_settings([]) == DEFAULT


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


def points(knob: Knob, *rows: tuple[float, int, int]) -> list[Point]:
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
    def chosen(order: list[tuple[int, int]]) -> float:
        default = sized(order)
        found = []
        for value in AREA.values(default.of("image"), Policy()):
            most = int(value // UNIT)
            capped = table(*(replace(c, tokens=min(c.tokens, most)) for c in default.of("image")))
            found.append(frontier.point(AREA, value, capped, default))
        return choose(found, Policy()).value

    assert chosen(sizes) == chosen(sizes[::-1])


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


def test_a_switch_stands_beside_its_value() -> None:
    on = replace(CROPS, value=4)
    scope = "images_kwargs"
    name = "pan_and_scan_max_num_crops"
    assert frontier.at(CROPS, 3).mm_processor_kwargs == {scope: {name: 3, "do_pan_and_scan": True}}
    assert frontier.at(on, 0).mm_processor_kwargs == {scope: {name: 0, "do_pan_and_scan": False}}
    assert frontier.at(CROPS, 0) == DEFAULT


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(prefer="throughput"), Policy(max_tokens_per_item=10_000)]
)
def test_more_than_the_model_makes_of_an_item_is_never_chosen(policy: Policy) -> None:
    slim = ImageShape(1600, 400)
    default = table(cost(slim, 256))
    found = [
        frontier.point(CROPS, crops, table(cost(slim, 256 * (1 + crops))), default)
        for crops in CROPS.steps
    ]
    assert [point.items_enlarged for point in found] == [0, 1, 1, 1]
    assert choose(found, policy).value == 0
    assert choose(found, policy, at_most=10_000).value == 0


def test_a_point_sums_up_what_items_keep_and_take() -> None:
    shapes = [ImageShape(280, side) for side in (280, 560, 5600)]
    before = [
        cost(shape, tokens, count)
        for shape, tokens, count in zip(shapes, (100, 200, 2000), (90, 9, 1), strict=True)
    ]
    after = [
        before[0],
        replace(before[1], tokens=100, process_s=0.2),
        replace(before[2], tokens=500, embeds=480, process_s=1.2, basis="counted"),
    ]
    point = frontier.point(AREA, 500 * UNIT, table(*after), table(*before))
    assert point.mean_retention == pytest.approx((90 + 9 * 0.5 + 0.25) / 100)
    assert (point.max_tokens, point.p99_tokens, point.p50_tokens) == (500, 100, 100)
    assert point.max_embeds == 480
    assert point.process_s == pytest.approx((9 * 0.2 + 1.2) / 100)
    assert point.counted
    assert not frontier.point(AREA, AREA.value, table(*before), table(*before)).counted
