from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain import knobs
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.limits import frontier
from mmcalib.limits.costs import CostTable
from mmcalib.limits.frontier import Point, RatedPoint, choose_point, find_dominated
from mmcalib.limits.policy import Policy
from tests.builders import some
from tests.limits.costed import AREA, CAPS, CROPS, FRAMES, SHAPES, TILES, UNIT, cost, sized, table


def test_a_setting_nests_the_value_beside_its_companions() -> None:
    assert frontier.setting_at(AREA, 100 * UNIT) == knobs.Setting(
        {"images_kwargs": {"size": {"longest_edge": 100 * UNIT, "shortest_edge": 4 * UNIT}}}
    )
    assert frontier.setting_at(TILES, 3) == knobs.Setting({"max_dynamic_patch": 3})


def test_merging_keeps_each_knobs_scope() -> None:
    video = replace(AREA, modality="video", path=("videos_kwargs", "size", "longest_edge"))
    tiles = knobs.TileCap(path=("images_kwargs", "num_crops"), value=16)
    parts = [
        frontier.setting_at(AREA, 8 * UNIT),
        frontier.setting_at(video, 9 * UNIT),
        frontier.setting_at(tiles, 2),
        knobs.Setting(media_io_kwargs={"video": {"num_frames": 8}}),
    ]
    together = knobs.merge_settings(parts)
    assert together == knobs.Setting(
        {
            "images_kwargs": {
                "size": {"longest_edge": 8 * UNIT, "shortest_edge": 4 * UNIT},
                "num_crops": 2,
            },
            "videos_kwargs": {"size": {"longest_edge": 9 * UNIT, "shortest_edge": 4 * UNIT}},
        },
        {"video": {"num_frames": 8}},
    )
    assert together.key == knobs.merge_settings(parts[::-1]).key
    assert parts[0] == frontier.setting_at(AREA, 8 * UNIT), "the parts are not changed by merging"
    assert knobs.merge_settings([]) == knobs.DEFAULT


def test_a_point_counts_items_not_shapes() -> None:
    a, b = ImageShape(280, 280), ImageShape(560, 280)
    default = table(cost(a, 100, count=3), cost(b, 200, count=1))
    capped = table(
        cost(a, 100, count=3), cost(b, 50, count=1), setting=frontier.setting_at(AREA, 50 * UNIT)
    )
    point = frontier.make_point(AREA, 50 * UNIT, capped, default)
    assert (point.items, point.items_downscaled, point.share_downscaled) == (4, 1, 0.25)
    assert (point.worst_retention, point.max_tokens, point.p50_tokens) == (0.25, 100, 100)
    assert point.setting == frontier.setting_at(AREA, 50 * UNIT)


def test_an_item_refused_under_a_setting_keeps_nothing() -> None:
    """Else the setting that refuses most would look like the one that harms least."""
    a, b = ImageShape(280, 280), ImageShape(560, 280)
    default = table(cost(a, 100), cost(b, 200))
    point = frontier.make_point(AREA, 50 * UNIT, table(cost(a, 100)), default)
    assert (point.items, point.items_downscaled, point.worst_retention) == (2, 1, 0.0)


def point_of_ten(
    value: float, most: int, downscaled: int = 0, worst: float = 0.5, knob: knobs.Knob = AREA
) -> Point:
    """So many tokens of the largest item; `worst` is kept of each that is downscaled."""
    mean, least = 1 - downscaled / 10 * (1 - worst), worst if downscaled else 1.0
    setting = frontier.setting_at(knob, value)
    return Point(knob, value, setting, most, most, 10, downscaled, least, mean_retention=mean)


def points(knob: knobs.Knob, *rows: tuple[float, int, int]) -> list[Point]:
    """Of each its value, the tokens of its largest item, and the items downscaled."""
    return [point_of_ten(*row, knob=knob) for row in rows]


AREAS = points(
    AREA, (256 * UNIT, 256, 8), (512 * UNIT, 510, 5), (1024 * UNIT, 1020, 0), (AREA.value, 1020, 0)
)
TILED = points(TILES, (1, 256, 9), (2, 768, 5), (3, 1024, 0), (12, 1024, 0))


@pytest.mark.parametrize("ladder", [AREAS, TILED], ids=["areas", "tiles"])
def test_quality_takes_the_smallest_value_that_downscales_nothing(ladder: list[Point]) -> None:
    """And throughput the one that leaves half of the items whole."""
    assert choose_point(ladder, Policy()) is ladder[2]
    assert choose_point(ladder, Policy(prefer="throughput")) is ladder[1]


@pytest.mark.parametrize(
    ("ladder", "cap", "expected"),
    [(AREAS, 512, 1), (AREAS, 100_000, 3), (AREAS, 1, 0), (TILED, 767, 0)],
)
def test_a_cap_in_tokens_takes_the_largest_value_within_it(ladder, cap: int, expected: int) -> None:
    assert choose_point(ladder, Policy(max_tokens_per_item=cap)) is ladder[expected]


def test_a_switch_stands_beside_its_value() -> None:
    for knob, value, switch in ((CROPS, 3, True), (replace(CROPS, value=4), 0, False)):
        crops = {"pan_and_scan_max_num_crops": value, "do_pan_and_scan": switch}
        assert frontier.setting_at(knob, value) == knobs.Setting({"images_kwargs": crops})
    assert frontier.setting_at(CROPS, 0) == knobs.DEFAULT


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(prefer="throughput"), Policy(max_tokens_per_item=10_000)]
)
def test_more_than_the_model_makes_of_an_item_is_never_chosen(policy: Policy) -> None:
    slim = ImageShape(1600, 400)
    default = table(cost(slim, 256))
    found = [
        frontier.make_point(CROPS, crops, table(cost(slim, 256 * (1 + crops))), default)
        for crops in CROPS.steps
    ]
    assert [point.items_enlarged for point in found] == [0, 1, 1, 1]
    assert choose_point(found, policy).value == 0
    assert choose_point(found, policy, at_most=10_000).value == 0


GEMMA = knobs.TokenCap(path=("max_soft_tokens",), value=280, steps=(280, 560, 1120), token_px=48**2)
# 0.6 megapixels are within 280 × 48² pixels, 1.2 within 560 × 48², 5 and 12 within none.
SMALL, MIDDLE, LARGE = ImageShape(900, 670), ImageShape(1200, 1000), ImageShape(2500, 2000)


def soft_tokens(*shapes: ImageShape) -> list[Point]:
    """Each image takes as many tokens as it may."""
    tables = [table(*(cost(shape, value, 3) for shape in shapes)) for value in GEMMA.steps]
    pairs = zip(GEMMA.steps, tables, strict=True)
    return [frontier.make_point(GEMMA, value, costs, tables[0]) for value, costs in pairs]


def test_who_gains_is_who_was_shrunk_not_who_is_enlarged() -> None:
    found = soft_tokens(SMALL, MIDDLE, LARGE)
    assert [point.items_shrunk for point in found] == [6, 3, 3]
    assert [point.items_gaining for point in found] == [0, 6, 6]
    assert [point.items_enlarged for point in found] == [0, 9, 9]
    assert [point.mean_enlargement for point in found] == [1, 2, 4]


@pytest.mark.parametrize(
    ("shapes", "at_most", "expected"),
    [
        ((SMALL,), None, 280),
        ((SMALL, MIDDLE), None, 560),
        ((SMALL, LARGE), None, 1120),
        ((SMALL, LARGE), 1000, 560),
        ((SMALL, LARGE), 300, 280),
    ],
)
def test_detail_takes_the_smallest_fitting_cap_that_shrinks_nothing(
    shapes: tuple[ImageShape, ...], at_most: int | None, expected: int
) -> None:
    found = soft_tokens(*shapes)
    assert choose_point(found, Policy(prefer="detail"), at_most).value == expected
    assert choose_point(found, Policy(), at_most).value == 280
    capped = Policy(prefer="detail", max_tokens_per_item=2000)
    assert choose_point(found, capped).value == 280, "a cap replaces --prefer"


def test_tiles_keep_what_their_layout_has_of_an_image() -> None:
    """InternVL's, of 448 × 448 and 256 tokens: 2550 × 3300 pixels fill 41.9 of them."""
    tiles = replace(TILES, tile_px=448**2, tile_embeds=256)
    page, thumb = ImageShape(2550, 3300), ImageShape(900, 670)
    one = table(cost(thumb, 256), cost(page, 13 * 256)).columns_of("image")
    assert tiles.values(one, Policy()) == [*range(1, 13), 18, 24, 36, 48, 72, 84]
    assert tiles.values(one.take(one.tokens == 256), Policy())[-1] == 12
    # 12 tiles and the whole, for want of a layout nearer to 17:22; 38 tiles; 48 tiles.
    laid = (42, 13, 12 / 41.93), (42, 39, 1), (48, 49, 1), (24, 39, 24 / 41.93)
    for value, tokens, kept in laid:
        laid_out = table(cost(thumb, 256), cost(page, tokens * 256)).columns_of("image")
        found = some(tiles.kept_pixels(laid_out, value))
        assert found.tolist() == pytest.approx([1, kept], rel=1e-3), value


def test_a_point_sums_up_what_items_keep_and_take() -> None:
    before = [
        cost(ImageShape(280, side), tokens, count)
        for side, tokens, count in ((280, 100, 90), (560, 200, 9), (5600, 2000, 1))
    ]
    after = [
        before[0],
        replace(before[1], tokens=100, process_s=0.2),
        replace(before[2], tokens=500, embeds=480, process_s=1.2, basis="counted"),
    ]
    point = frontier.make_point(AREA, 500 * UNIT, table(*after), table(*before))
    assert point.mean_retention == pytest.approx((90 + 9 * 0.5 + 0.25) / 100)
    assert (point.max_tokens, point.p99_tokens, point.p50_tokens) == (500, 100, 100)
    assert point.max_embeds == 480
    assert point.process_s == pytest.approx((9 * 0.2 + 1.2) / 100)
    assert point.counted
    assert not frontier.make_point(AREA, AREA.value, table(*before), table(*before)).counted


CAPPED, FITS = point_of_ten(100 * UNIT, 100, 3), point_of_ten(200 * UNIT, 200)
UNCAPPED = point_of_ten(AREA.value, 200)

RATED = st.lists(
    st.builds(
        RatedPoint,
        st.builds(point_of_ten, st.just(UNIT), st.integers(1, 3), st.integers(0, 2)),
        st.integers(1, 3),
        st.none() | st.integers(1, 3),
    ),
    min_size=1,
    max_size=6,
)


def test_the_default_is_beaten_by_the_cap_that_takes_nothing_and_reserves_less() -> None:
    rated = [RatedPoint(CAPPED, 100), RatedPoint(FITS, 200), RatedPoint(UNCAPPED, 16384)]
    assert find_dominated(rated) == [False, False, True]


def test_where_memory_was_rehearsed_more_kv_tokens_beat() -> None:
    fits, uncapped = RatedPoint(FITS, 200, 900), RatedPoint(UNCAPPED, 200, 800)
    assert find_dominated([fits, uncapped]) == [False, True]
    assert find_dominated([fits, RatedPoint(CAPPED, 200, 950)]) == [False, False]


def test_another_knob_of_the_same_modality_beats_and_other_modalities_do_not() -> None:
    area = replace(AREA, modality="video")
    fewer = point_of_ten(1, 200, 4, knob=FRAMES)
    smaller = point_of_ten(300 * UNIT, 200, 2, knob=area)
    assert find_dominated([RatedPoint(fewer, 500), RatedPoint(smaller, 400)]) == [True, False]
    images = replace(smaller, knob=AREA)
    assert find_dominated([RatedPoint(fewer, 500), RatedPoint(images, 400)]) == [False, False]


def test_more_detail_than_by_default_is_not_judged_by_what_it_costs() -> None:
    off, on = point_of_ten(0, 256, knob=CROPS), point_of_ten(4, 1280, knob=CROPS)
    assert find_dominated([RatedPoint(off, 256), RatedPoint(on, 1280)]) == [False, False]


@given(RATED)
def test_someone_is_never_beaten(rated: list[RatedPoint]) -> None:
    alike = [replace(one, kv_tokens=None) for one in rated]
    assert not all(find_dominated(alike))


def candidates(knob: knobs.Knob, default: CostTable, policy: Policy) -> list[knobs.Value]:
    return knob.values(default.columns_of(knob.modality), policy)


@given(SHAPES, CAPS, st.sampled_from([AREA, TILES, replace(TILES, tile_px=448**2)]))
def test_candidates_ascend_and_pass_the_default_only_if_it_shrinks(sizes, cap, knob) -> None:
    default = sized(sizes)
    values = candidates(knob, default, Policy(max_tokens_per_item=cap))
    assert values == sorted(set(values))
    assert knob.value in values
    assert values[0] >= 1
    images = default.columns_of("image")
    usual, most = knob.kept_pixels(images, knob.value), knob.kept_pixels(images, values[-1])
    assert (values[-1] > knob.value) == (usual is not None and bool((usual < 1).any()))
    assert most is None or (most == 1).all()


@given(SHAPES, st.integers(1, 16383))
def test_the_cap_that_the_user_names_is_tried(sizes, cap: int) -> None:
    assert cap * UNIT in candidates(AREA, sized(sizes), Policy(max_tokens_per_item=cap))


def test_an_area_cap_may_change_what_exceeds_it() -> None:
    small, large = ImageShape(280, 280), ImageShape(560, 280)
    clip, sound = VideoShape(8, 8.0, 1.0, 5600, 5600), AudioShape(8000, 8000)
    default = table(cost(small, 100), cost(large, 200), cost(clip, 9), cost(sound, 9))
    shapes = default.columns_of("image").shapes
    assert list(shapes) == [small, large]
    assert AREA.changed_mask(shapes, 100 * UNIT).tolist() == [False, True]
    assert AREA.changed_mask(shapes, 200 * UNIT).tolist() == [False, False]
    assert TILES.changed_mask(shapes, 12).tolist() == [True, True]


def test_the_witness_is_the_costliest_that_should_not_change() -> None:
    images = sized([(2800, 2800), (280, 280), (560, 560)]).columns_of("image")
    changed = AREA.changed_mask(images.shapes, 1000 * UNIT)
    assert some(images.take(~changed).heaviest).shape == ImageShape(560, 560)
    assert images.take(changed & ~changed).heaviest is None


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


def test_frames_are_tried_at_the_steps_of_the_knob() -> None:
    assert candidates(FRAMES, sized([(64, 64)]), Policy()) == [0.25, 0.5, 1, 2]
