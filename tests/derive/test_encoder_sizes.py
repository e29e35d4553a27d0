from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.encoder_sizes import SIZES, Sized, batches, candidates, sizes
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape

IMAGE = {"width": 1008, "height": 1008}


def sized(*embeds: int) -> list[Sized]:
    return [Sized(ImageShape(n, 1), n) for n in embeds]


def embeds(found: list[Sized]) -> list[int]:
    return [one.embeds for one in found]


def test_images_reach_from_a_64th_of_the_largest_to_it() -> None:
    shapes = candidates("image", IMAGE)
    assert shapes[0] == ImageShape(126, 126)
    assert shapes[-1] == ImageShape(1008, 1008)
    assert len(shapes) == len(set(shapes)) >= 2 * SIZES


def test_tiled_images_are_tried_in_layouts_too() -> None:
    plain, tiled = candidates("image", IMAGE), candidates("image", IMAGE, tiled=True)
    assert ImageShape(12 * 448, 448) in set(tiled) - set(plain)


def test_videos_lose_frames_before_they_lose_pixels() -> None:
    shapes = candidates("video", {"num_frames": 32, "width": 640, "height": 360})
    assert shapes[-1] == VideoShape(32, 2.0, 16.0, 640, 360)
    assert all(isinstance(s, VideoShape) and s.num_frames % 2 == 0 for s in shapes)
    whole = [s for s in shapes if isinstance(s, VideoShape) and s.num_frames > 2]
    assert min(s.width_px for s in whole) > 0.8 * 640
    assert isinstance(shapes[0], VideoShape)
    assert shapes[0].num_frames == 2
    assert shapes[0].width_px < 0.8 * 640


def test_clips_of_sound_have_the_server_s_rate_and_none_without() -> None:
    shapes = candidates("audio", {"length": 480_000}, audio_rate_hz=16_000)
    assert shapes[-1] == AudioShape(480_000, 16_000)
    assert candidates("audio", {"length": 480_000}) == []


@given(tried=st.lists(st.integers(1, 20_000), max_size=60), cap=st.integers(1, 20_000))
def test_sizes_ascend_up_to_the_cap_and_hold_the_largest(tried: list[int], cap: int) -> None:
    found = embeds(sizes(sized(*tried), cap))
    below = [n for n in tried if n <= cap]
    assert found == sorted(set(found))
    assert len(found) <= SIZES
    assert (found[-1] if found else 0) == max(below, default=0)
    near = {n for n in below if n * 64 >= max(below)}
    assert set(found) <= near
    assert len(found) == min(SIZES, len(near))


def test_sizes_are_spread_evenly_over_the_logarithm() -> None:
    found = embeds(sizes(sized(*range(1, 1281)), 1280))
    steps = [b / a for a, b in pairwise(found)]
    assert len(found) == SIZES
    assert max(steps) < 1.75
    assert min(steps) > 1.4


def test_several_items_are_of_about_a_quarter_of_the_largest() -> None:
    found = batches(sized(20, 80, 320, 640, 1280), 2560)
    assert [(b.sized.embeds, b.items) for b in found if b.items > 1] == [(320, 2), (320, 4)]
    assert [b.tokens for b in found] == sorted(b.tokens for b in found)
    assert [b.sized.embeds for b in found if b.items == 1] == [20, 80, 320, 640, 1280]


def test_no_batch_is_more_than_a_step_may_encode() -> None:
    found = batches(sized(300, 1280), 1280)
    assert [(b.sized.embeds, b.items) for b in found] == [(300, 1), (300, 2), (300, 4), (1280, 1)]
    assert all(b.tokens <= 1000 for b in batches(sized(300, 900), 1000))


def test_rather_a_smaller_size_than_fewer_items() -> None:
    found = batches(sized(200, 300, 1100), 1100)
    assert [(b.sized.embeds, b.items) for b in found if b.items > 1] == [(200, 2), (200, 4)]


def test_where_all_items_cost_the_same_there_are_more_batches() -> None:
    found = batches(sized(256), 2048)
    assert [b.items for b in found] == [1, 2, 3, 4, 6, 8]


@pytest.mark.parametrize("tried", [[], [5000]])
def test_nothing_within_the_cap_is_nothing_to_encode(tried: list[int]) -> None:
    assert batches(sizes(sized(*tried), 1280), 2560) == []
