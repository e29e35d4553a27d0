from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mmcalib.derive import limits
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.limits import Count
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape

TOKENS = st.integers(0, 200_000)


def item(shape: Shape, embeds: int = 100, sampled: tuple[int, ...] = ()) -> ItemCost:
    return ItemCost(shape, 1, "a", embeds, embeds, 0, 0.0, sampled, "real")


def count(value: int) -> Count:
    return Count(value, "because", "computed")


def test_every_modality_is_written_and_only_hinted_ones_are_mappings() -> None:
    counts: dict[Modality, Count] = {"image": count(4), "video": count(0), "audio": count(1)}
    hints: dict[Modality, dict[str, int]] = {"image": {"width": 640, "height": 480}, "audio": {}}
    assert limits.limit_mm_per_prompt(counts, hints) == {
        "image": {"count": 4, "width": 640, "height": 480},
        "video": 0,
        "audio": 1,
    }


def test_an_image_is_named_as_it_lies_and_turned() -> None:
    assert limits.hint_candidates(item(ImageShape(640, 480)), None) == [
        {"width": 640, "height": 480},
        {"width": 480, "height": 640},
    ]


def test_a_video_has_the_frames_that_the_loader_keeps() -> None:
    video = item(VideoShape(900, 30.0, 30.0, 640, 480), sampled=(32, 640, 480))
    assert limits.hint_candidates(video, None) == [
        {"num_frames": 32, "width": 640, "height": 480},
        {"num_frames": 32, "width": 480, "height": 640},
    ]


@given(st.integers(1, 10**7), st.sampled_from([8000, 16000, 22050, 44100, 48000]))
def test_a_clip_has_the_samples_of_the_servers_rate(samples: int, rate: int) -> None:
    clip = item(AudioShape(samples, rate))
    assert limits.hint_candidates(clip, rate) == [{"length": samples}]
    exact = ceil(Fraction(samples, rate) * 16000)
    assert limits.hint_candidates(clip, 16000) == [{"length": exact}]
    assert limits.hint_candidates(clip, None) == []


def budget(most: int, dummy: int | None) -> Budget:
    return Budget(
        encoder_compute_budget=8192,
        encoder_cache_size=8192,
        max_tokens_per_item={"image": most},
        max_items_per_prompt={"image": 1},
        max_items_per_batch={"image": 1},
        profiled_modality="image",
        profiled_items=1,
        dummies={} if dummy is None else {"image": Dummy(dummy, 0, {})},
        max_model_len=32768,
        max_num_batched_tokens=8192,
        max_num_seqs=8,
    )


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
def test_a_hint_is_honest_when_its_dummy_costs_what_may_come(
    dummy: int | None, most: int, heaviest: int, honest: bool
) -> None:
    largest = item(ImageShape(1, 1), heaviest)
    assert limits.hint_is_honest("image", budget(most, dummy), largest) is honest


@given(TOKENS, st.integers(1, 200_000), TOKENS, st.booleans())
def test_max_num_batched_tokens_admits_every_item(
    wanted: int, largest: int, real: int, chunks: bool
) -> None:
    """vLLM's encoder cache holds the larger of this value and its own largest item."""
    found = limits.max_num_batched_tokens(wanted, largest, real, chunks_mm_input=chunks)
    assert max(found, largest) >= real
    assert found >= wanted


@given(TOKENS, st.integers(1, 200_000), TOKENS, st.booleans())
def test_at_or_above_the_largest_item_it_is_whole_items(
    wanted: int, largest: int, real: int, chunks: bool
) -> None:
    found = limits.max_num_batched_tokens(wanted, largest, real, chunks_mm_input=chunks)
    if found >= largest:
        assert found % largest == 0
        assert found < max(wanted, real, largest) + largest, "no more than one item too many"
    else:
        assert chunks
        assert found == wanted


@given(TOKENS, st.integers(1, 200_000), TOKENS)
def test_a_model_that_cannot_chunk_gets_a_whole_item_per_step(
    wanted: int, largest: int, real: int
) -> None:
    found = limits.max_num_batched_tokens(wanted, largest, real, chunks_mm_input=False)
    assert found >= largest


@given(TOKENS, TOKENS, st.integers(1, 200_000), TOKENS, st.booleans())
def test_wanting_more_never_gives_less(
    wanted: int, more: int, largest: int, real: int, chunks: bool
) -> None:
    assume(more >= wanted)
    one = limits.max_num_batched_tokens(wanted, largest, real, chunks_mm_input=chunks)
    two = limits.max_num_batched_tokens(more, largest, real, chunks_mm_input=chunks)
    assert two >= one


@given(TOKENS, st.integers(1, 200_000), TOKENS, st.sampled_from(["down", "none"]))
def test_less_than_rounded_up_still_holds_every_item(
    wanted: int, largest: int, real: int, rounding: limits.Rounding
) -> None:
    up = limits.max_num_batched_tokens(wanted, largest, real, chunks_mm_input=True)
    found = limits.max_num_batched_tokens(
        wanted, largest, real, chunks_mm_input=True, rounding=rounding
    )
    assert max(found, largest) >= real
    assert found <= up
    assert found >= wanted if rounding == "none" else found > wanted - largest


def test_a_step_for_whisper_is_one_item_or_two() -> None:
    found = [
        limits.max_num_batched_tokens(2048, 1500, 1500, chunks_mm_input=False, rounding=rounding)
        for rounding in ("down", "none", "up")
    ]
    assert found == [1500, 2048, 3000]


def test_without_items_it_is_what_was_wanted() -> None:
    assert limits.max_num_batched_tokens(2048, 0, 0, chunks_mm_input=False) == 2048


def test_the_numbers_of_the_design() -> None:
    assert limits.max_num_batched_tokens(8192, 1280, 1280, chunks_mm_input=True) == 8960
    assert limits.max_num_batched_tokens(2048, 16384, 324, chunks_mm_input=True) == 2048
