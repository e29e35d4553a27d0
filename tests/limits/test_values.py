from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain.memory import Budget, Clip, Dummy
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, VideoShape
from mmcalib.limits.values import (
    Count,
    Rounding,
    compute_reserve,
    hint_candidates,
    hint_covers_largest,
    limit_mm_per_prompt,
    max_num_batched_tokens,
)
from tests import builders
from tests.limits.costed import cost

TOKENS = st.integers(0, 200_000)


def count(value: int) -> Count:
    return Count(value, "because", "computed")


def test_every_modality_is_written_and_only_hinted_ones_are_mappings() -> None:
    counts: dict[Modality, Count] = {"image": count(4), "video": count(0), "audio": count(1)}
    hints: dict[Modality, dict[str, int]] = {"image": {"width": 640, "height": 480}, "audio": {}}
    assert limit_mm_per_prompt(counts, hints) == {
        "image": {"count": 4, "width": 640, "height": 480},
        "video": 0,
        "audio": 1,
    }


def test_a_video_has_the_frames_that_the_loader_keeps() -> None:
    video = cost(VideoShape(900, 30.0, 30.0, 640, 480), 100, sampled=(32, 640, 480))
    assert hint_candidates(video, None) == [
        {"num_frames": 32, "width": 640, "height": 480},
        {"num_frames": 32, "width": 480, "height": 640},
    ]


@given(st.integers(1, 10**7), st.sampled_from([8000, 16000, 22050, 44100, 48000]))
def test_a_clip_has_the_samples_of_the_servers_rate(samples: int, rate: int) -> None:
    clip = cost(AudioShape(samples, rate), 100)
    assert hint_candidates(clip, rate) == [{"length": samples}]
    exact = ceil(Fraction(samples, rate) * 16000)
    assert hint_candidates(clip, 16000) == [{"length": exact}]
    assert hint_candidates(clip, None) == []


@pytest.mark.parametrize(
    ("dummy", "most", "heaviest", "honest"),
    [
        (1280, 1280, 1280, True),
        (1280, 1280, 900, True),
        (1300, 1280, 1280, True),
        (324, 16384, 324, False),  # the trap: profiled small, admitted large
        (1279, 1280, 900, False),
        (1000, 1000, 1280, False),  # the corpus holds more than vLLM budgets for
        (2000, 1000, 1280, False),
        (None, 1280, 1280, False),
    ],
)
def test_a_hint_is_honest_when_its_dummy_costs_what_may_come(dummy, most, heaviest, honest) -> None:
    largest, own = cost(ImageShape(1, 1), heaviest), budget(8192, {"image": most}, dummy)
    assert hint_covers_largest("image", own, largest) is honest


@given(TOKENS, st.integers(1, 200_000), TOKENS, st.sampled_from(["down", "none"]), st.booleans())
def test_max_num_batched_tokens_admits_every_item(wanted, largest, real, rounding, chunks) -> None:
    """vLLM's encoder cache holds the larger of this value and its own largest item."""
    up = max_num_batched_tokens(wanted, largest, real, chunks_mm_input=chunks)
    assert max(up, largest) >= real
    assert up >= wanted
    found = max_num_batched_tokens(wanted, largest, real, chunks_mm_input=True, rounding=rounding)
    assert max(found, largest) >= real
    assert found <= up
    assert found >= wanted if rounding == "none" else found > wanted - largest


def test_the_numbers_of_the_design() -> None:
    assert max_num_batched_tokens(8192, 1280, 1280, chunks_mm_input=True) == 8960
    assert max_num_batched_tokens(2048, 16384, 324, chunks_mm_input=True) == 2048
    # A step for Whisper is one item or two.
    steps: dict[Rounding, int] = {"down": 1500, "none": 2048, "up": 3000}
    for rounding, tokens in steps.items():
        found = max_num_batched_tokens(2048, 1500, 1500, chunks_mm_input=False, rounding=rounding)
        assert found == tokens


def budget(
    encoder_tokens: int, most: dict[Modality, int], dummy: int | None, **changes: Any
) -> Budget:
    """`dummy` is the embeds of the heaviest item's, which is profiled."""
    heaviest = max(most, key=lambda name: most[name])
    dummies = {heaviest: Dummy(dummy, 0, {})} if dummy else {}
    return builders.budget(encoder_tokens, most, dummies=dummies, **changes)


ONE: dict[str, Any] = {"profiled_items": 1, "max_num_seqs": 1}
TWO: dict[str, Any] = {"profiled_items": 2, "max_num_seqs": 2}
BOTH: dict[Modality, int] = {"image": 1280, "video": 1000}
HEARD: dict[Modality, int] = {"image": 1000, "audio": 500}


@pytest.mark.parametrize(
    ("own", "counts", "profiled", "worst", "passes"),
    [
        # 512×512 shrinks the dummy to 324 tokens; a step may still encode an item of 16,384.
        (budget(16384, {"image": 16384}, 324), {"image": 1}, 324, 16384, False),
        # max_pixels 1003520: 8192 // 1280 = 6 items.
        (budget(8192, {"image": 1280}, 1280), {"image": 1}, 7680, 8192, True),
        (budget(8192, {"image": 1280}, 1280, **TWO), {"image": 1}, 2560, 2560, True),
        (budget(8192, {"image": 1280}, 1280, **TWO), {"image": 3}, 2560, 7680, False),
        # No processor option bounds its frames, so its own maximum does not either.
        (budget(8192, BOTH, 1280, **ONE), {"image": 1, "video": 1}, 1280, 8192, False),
        (budget(8192, HEARD, 1000, **ONE), {"image": 2, "audio": 1}, 1000, 2500, False),
        (budget(1000, {"image": 1000}, 900), {"image": 1}, 900, 1000, True),
        (budget(1000, {"image": 1000}, 899), {"image": 1}, 899, 1000, False),
    ],
    ids=[
        *("the-trap-of-size-hints", "a-smaller-item", "two-sequences", "two-sequences-of-three"),
        *("a-video-without-bound", "two-modalities", "nine-tenths", "less-than-nine-tenths"),
    ],
)
def test_nine_tenths_of_the_worst_step_are_enough(own, counts, profiled, worst, passes) -> None:
    found = compute_reserve(own, counts)
    assert (found.profiled_tokens, found.worst_step_tokens) == (profiled, worst)
    assert found.ratio == pytest.approx(profiled / worst)
    assert found.passes is passes


def test_a_video_is_no_larger_than_loader_and_processor_make_it() -> None:
    own = budget(8192, {"video": 196}, 196, largest_clip=Clip(384, 768, 16, 16), **TWO)
    found = compute_reserve(own, {"video": 1})
    assert (found.profiled_tokens, found.worst_step_tokens) == (392, 768)
    assert found.clip_suffix == " (videos of up to 768 frames of 16×16)"


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 8), st.integers(1, 300))
def test_a_profile_of_whole_budgets_passes_a_chosen_multiple(
    item: int, wanted: int, per_prompt: int, seqs: int
) -> None:
    """`max_num_batched_tokens` is rounded so that the profile leaves nothing out."""
    tokens = -(-wanted // item) * item
    items = max(1, min(tokens // item, seqs * per_prompt))
    own = budget(tokens, {"image": item}, item, profiled_items=items, max_num_seqs=seqs)
    assert compute_reserve(own, {"image": per_prompt}).ratio == 1.0
