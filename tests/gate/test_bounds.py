"""Rules for unseen shapes, against numbers that vLLM's processors gave (measured on 0.32)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain.shapes import AudioShape, Encoding, ImageShape, Shape, VideoShape
from mmcalib.gate.bounds import (
    Area,
    Bound,
    BoundResult,
    Ceiling,
    Frames,
    Ladder,
    Rung,
    Sampling,
    ServerRefusal,
)
from tests.builders import AREA as QWEN
from tests.builders import expect

CLIP = VideoShape(300, 30.0, 10.0, 640, 272)


def tokens(found: BoundResult) -> int:
    return expect(Bound, found).tokens


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(1316, 756, 1269), (1300, 876, 1426), (5400, 2700, 16290), (56, 56, 4), (56, 28, 6)],
)
def test_an_image_costs_what_the_processor_made_of_it(width, height: int, expected: int) -> None:
    assert QWEN.bound(ImageShape(width, height)) == Bound(expected, expected, expected, expected)


def test_half_a_cell_rounds_to_even() -> None:
    assert tokens(QWEN.bound(ImageShape(28 * 2 + 14, 28 * 10))) == 20
    assert tokens(QWEN.bound(ImageShape(28 * 3 + 14, 28 * 10))) == 40


def test_an_edge_of_less_than_half_a_cell_is_one_or_none() -> None:
    """One row of 50 cells in MiniMax-M3; elsewhere the empty area grows to `min_px`."""
    slim = ImageShape(1400, 7)
    assert tokens(replace(QWEN, least_edge_px=28).bound(slim)) == 50
    # sqrt(3136 / (1400 * 7)) = 0.566: 28.3 and 0.14 cells, both rounded up.
    assert tokens(QWEN.bound(slim)) == 29


def test_too_slim_an_image_is_refused() -> None:
    assert isinstance(QWEN.bound(ImageShape(10, 2001)), ServerRefusal)
    assert isinstance(QWEN.bound(ImageShape(10, 2000)), Bound)


@given(st.integers(30, 5000), st.integers(30, 5000), st.integers(100, 20000))
def test_a_cap_holds_but_for_slim_images(width: int, height: int, cap_tokens: int) -> None:
    cells = Area(28, 3136, cap_tokens * 784, 200.0).cells(width, height)
    slim = max(width, height) / min(width, height) > cap_tokens / 4
    assert slim or cells <= max(cap_tokens, 4)


@pytest.mark.parametrize(
    ("sampling", "shape", "kept"),
    [
        (Sampling("uniform", 32, -1), CLIP, 32),
        (Sampling("uniform", 32, 2), CLIP, 20),
        (Sampling("uniform", -1, -1), CLIP, 300),
        (Sampling("qwen2_vl", 32, 2), CLIP, 20),
        (Sampling("qwen2_vl", 32, 2), VideoShape(1, 1.0, 1.0, 64, 64), 0),
        (Sampling("qwen2_vl", 32, 2), VideoShape(24000, 30.0, 800.0, 64, 64), 768),
        (Sampling("qwen3_vl", 32, 2), VideoShape(3, 1.0, 3.0, 64, 64), 3),
    ],
)
def test_frames_are_kept_as_the_loader_keeps_them(sampling: Sampling, shape, kept: int) -> None:
    assert sampling.frames(shape) == kept


def test_a_video_costs_a_picture_per_pair_of_frames_and_may_have_two_frames_more() -> None:
    rule = Frames(Sampling("qwen2_vl", 32, 2), 2, QWEN)
    assert rule.bound(CLIP) == Bound(11 * 230, 11 * 230, 10 * 230, 10 * 230)
    assert isinstance(rule.bound(VideoShape(1, 1.0, 1.0, 64, 64)), ServerRefusal)
    assert rule.bound(VideoShape(300, 30.0, 10.0, 640, 4)) is None


def test_frames_of_one_size_cost_the_same_whatever_they_were() -> None:
    rule = Frames(Sampling("uniform", 32, -1), 1, None, step_embeds=196, around_embeds=1)
    assert tokens(rule.bound(CLIP)) == 32 * 196 + 1


def test_a_ceiling_holds_where_it_was_proven() -> None:
    rule = Ceiling(2306, 2304, min_side_px=8, max_aspect=100.0)
    assert rule.bound(ImageShape(4000, 3000)) == Bound(2306, 2304, 0, 0)
    assert rule.bound(ImageShape(7, 30)) is None
    assert rule.bound(ImageShape(8, 801)) is None


def test_a_clip_lies_between_two_rungs() -> None:
    rule = Ladder(16000, (Rung(16000, 25, 25), Rung(32000, 50, 50), Rung(48000, 75, 75)))
    assert rule.bound(AudioShape(12000, 8000)) == Bound(50, 50, 25, 25)
    # Resamplers differ by some samples: a clip of just a rung's length counts as the next longer.
    assert rule.bound(AudioShape(16000, 8000)) == Bound(75, 75, 25, 25)
    assert rule.bound(AudioShape(3200, 16000)) is None
    assert rule.bound(AudioShape(80000, 16000)) is None


def test_a_clip_that_ffmpeg_decodes_may_have_an_encoders_padding() -> None:
    """AAC of 5 s at 8 kHz: 41,024 samples by its header, 41,984 decoded (vLLM 0.32)."""
    rule = Ladder(16000, (Rung(160, 1, 1), Rung(83200, 130, 130), Rung(96000, 150, 150)))
    clip = AudioShape(41024, 8000)
    assert tokens(rule.bound(clip)) == 130
    assert rule.bound(clip, Encoding(sample_format="fltp")) == Bound(150, 150, 1, 1)
    short = AudioShape(4000, 16000)
    assert rule.bound(short, Encoding(sample_format="fltp")) == Bound(130, 130, 1, 1)


def test_what_is_shorter_than_a_sound_that_was_refused_is_refused() -> None:
    rule = Ladder(16000, (Rung(480, 1, 1), Rung(1600, 3, 3)), refused_samples=320)
    assert isinstance(rule.bound(AudioShape(80, 8000)), ServerRefusal)
    assert rule.bound(AudioShape(81, 8000)) is None
    # At the server's own rate nothing is resampled.
    assert isinstance(rule.bound(AudioShape(320, 16000)), ServerRefusal)
    assert rule.bound(AudioShape(321, 16000)) is None
    assert rule.bound(AudioShape(480, 16000)) == Bound(1, 1, 1, 1)


@pytest.mark.parametrize("rule", [QWEN, Ceiling(1, 1, 1, 200.0)])
def test_a_rule_is_silent_about_other_modalities(rule: Area | Ceiling) -> None:
    others: list[Shape] = [CLIP, AudioShape(1, 1)]
    assert [rule.bound(shape) for shape in others] == [None, None]
