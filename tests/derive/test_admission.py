from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.census.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.derive.admission import Admission, Gate, Known, admit, admit_prompt
from mmcalib.derive.bounds import Area, Ceiling, Frames, Ladder, Rung, Sampling
from mmcalib.derive.remedies import (
    CALIBRATE,
    prompts_needed,
    with_prompt_remedy,
    with_remedy,
)

AREA = Area(factor_px=28, min_px=3136, max_px=12845056, max_aspect=200.0)
PAGE, SLIVER, TALL = ImageShape(1316, 756), ImageShape(2, 900), ImageShape(280, 2800)
CLIP = VideoShape(300, 30.0, 10.0, 640, 272)
GATE = Gate(
    budget_tokens=2000,
    max_model_len=4096,
    text_reserve_tokens=1024,
    counts={"image": 2, "video": 1, "audio": 0},
    known={PAGE: Known(1269, 1269, "real")},
    refused={SLIVER: "aspect ratio"},
    rules={"image": AREA, "video": Frames(Sampling("qwen2_vl", 32, 2), 2, AREA)},
)
ORDER = ("no", "unknown", "fits")


def remedied(gate: Gate, shape: Shape) -> Admission:
    return with_remedy(gate, shape, admit(gate, shape))


def prompt(gate: Gate, shapes: list[Shape], text_bytes: int = 0) -> Admission:
    answer = admit_prompt(gate, shapes, text_bytes)
    return with_prompt_remedy(gate, shapes, text_bytes, answer)


def test_a_known_shape_is_exact() -> None:
    assert admit(GATE, PAGE) == Admission("fits", 1269, 1269, True, "real", "1269 tokens")
    tight = admit(replace(GATE, budget_tokens=1268), PAGE)
    assert (tight.answer, tight.reason) == ("no", "1269 tokens, the encoder cache holds 1268")


def test_an_unseen_image_is_bounded_by_the_rule() -> None:
    found = admit(GATE, ImageShape(1000, 750))
    assert (found.answer, found.tokens, found.exact, found.basis) == ("fits", 972, False, "formula")


def test_what_vllm_refused_does_not_fit() -> None:
    assert admit(GATE, SLIVER).reason == "vLLM: aspect ratio"
    assert remedied(GATE, ImageShape(10, 2010)).remedy == "crop or pad to 200:1 at most"


def test_a_modality_that_is_not_served_does_not_fit() -> None:
    clip = AudioShape(16000, 16000)
    assert remedied(GATE, clip).remedy == "calibrate again with --count audio=1"
    never = replace(GATE, counts={"image": 1})
    assert remedied(never, clip).reason == "the model takes no audio"


def test_the_context_bounds_an_item_too() -> None:
    found = remedied(replace(GATE, max_model_len=2000), PAGE)
    assert (found.answer, found.reason) == ("no", "1269 tokens + 1024 for text, of 2000")
    assert found.remedy.startswith("resize to ")


def test_nothing_known_is_unknown_and_asks_for_a_new_calibration() -> None:
    found = remedied(replace(GATE, rules={}), ImageShape(1000, 750))
    assert (found.answer, found.tokens, found.remedy) == ("unknown", None, CALIBRATE)


def test_a_bound_above_the_limit_is_no_proof_that_the_item_does_not_fit() -> None:
    gate = replace(GATE, rules={"image": Ceiling(2304, 2304, 1, 200.0)})
    found = admit(gate, ImageShape(10, 10))
    assert (found.answer, found.reason) == (
        "unknown",
        "at most 2304 tokens, the encoder cache holds 2000",
    )


def test_a_video_is_cut_or_resized() -> None:
    found = remedied(GATE, CLIP)
    assert (found.answer, found.reason) == (
        "no",
        "at least 2300 tokens, the encoder cache holds 2000",
    )
    cut, resize = found.remedy.split(" or ")
    assert cut == "cut to 239 frames (8.0 s)"
    assert resize == "resize to 574×244"


def test_a_clip_of_sound_is_cut() -> None:
    ladder = Ladder(16000, tuple(Rung(16000 * s, 100 * s, 100 * s) for s in range(1, 60)))
    gate = replace(GATE, counts={"audio": 1}, rules={"audio": ladder})
    found = remedied(gate, AudioShape(30 * 44100, 44100))
    assert (found.answer, found.remedy) == ("no", "cut to 19.99 s")


def test_a_prompt_has_as_many_items_as_the_limit_says() -> None:
    assert prompt(GATE, [PAGE, PAGE]).fits
    found = prompt(GATE, [PAGE, PAGE, PAGE])
    assert (found.answer, found.reason) == ("no", "3 image items, limit_mm_per_prompt admits 2")
    assert found.remedy == "split into 2 prompts or calibrate again with --count image=3"


def test_the_items_of_a_prompt_leave_room_for_its_text() -> None:
    gate = replace(GATE, max_model_len=3500)
    found = prompt(gate, [PAGE, PAGE])
    assert (found.answer, found.reason) == ("no", "2538 tokens of media + 1024 for text, of 3500")
    assert found.remedy == "split into 2 prompts"


def test_a_long_text_may_decide() -> None:
    assert prompt(GATE, [PAGE, PAGE], 1558).fits
    found = prompt(GATE, [PAGE, PAGE], 1559)
    assert (found.answer, found.remedy) == ("unknown", "split into 2 prompts")
    assert prompt(GATE, [PAGE], 5000).remedy == "a shorter text"


def test_the_item_that_does_not_fit_decides_for_its_prompt() -> None:
    found = prompt(GATE, [PAGE, SLIVER])
    assert (found.answer, found.reason) == ("no", "vLLM: aspect ratio")
    assert prompts_needed(GATE, [PAGE, SLIVER], 0) is None


images = st.builds(ImageShape, st.integers(1, 6000), st.integers(1, 6000))
videos = st.builds(
    lambda frames, fps, width, height: VideoShape(frames, fps, frames / fps, width, height),
    st.integers(1, 3000),
    st.sampled_from([1.0, 12.5, 23.976, 30.0, 60.0]),
    st.integers(1, 2000),
    st.integers(1, 2000),
)
shapes = st.one_of(images, videos, st.sampled_from([PAGE, SLIVER, TALL]))


@given(shapes, st.integers(1, 20000), st.integers(0, 20000), st.integers(0, 20000))
def test_more_room_never_turns_a_better_answer_into_a_worse(
    shape: Shape, budget: int, more_budget: int, more_context: int
) -> None:
    small = replace(GATE, budget_tokens=budget)
    large = replace(
        small,
        budget_tokens=budget + more_budget,
        max_model_len=small.max_model_len + more_context,
    )
    before, after = admit(small, shape).answer, admit(large, shape).answer
    assert ORDER.index(after) >= ORDER.index(before)


@given(st.lists(shapes, max_size=4), st.integers(0, 5000), st.integers(0, 20000))
def test_more_room_never_hurts_a_prompt(found: list[Shape], text: int, more: int) -> None:
    large = replace(GATE, max_model_len=GATE.max_model_len + more)
    before = admit_prompt(GATE, found, text).answer
    assert ORDER.index(admit_prompt(large, found, text).answer) >= ORDER.index(before)


@given(shapes)
def test_a_size_that_is_named_fits(shape: Shape) -> None:
    remedy = remedied(GATE, shape).remedy
    for words in remedy.split(" or "):
        if words.startswith("resize to "):
            width, height = map(int, words.removeprefix("resize to ").split("×"))
            resized: Shape = ImageShape(width, height)
            if isinstance(shape, VideoShape):
                resized = replace(shape, width_px=width, height_px=height)
            assert admit(GATE, resized).fits


@pytest.mark.parametrize("answer", ["fits", "no", "unknown"])
def test_only_fits_fits(answer: str) -> None:
    assert Admission(answer, 1, 1, True, "real", "").fits == (answer == "fits")  # type: ignore[arg-type]
