from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.demand import (
    Engine,
    LanguageStep,
    PromptsStep,
    Resident,
    Shortfall,
    WorstStep,
    larger,
    smaller,
)
from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import Modality
from mmcalib.releases.constants import VLLM_SLACK_BYTES

MIB = 1 << 20
GIB = 1 << 30


def budget(cache: int, item: int, seqs: int, modality: Modality = "image") -> Budget:
    items = max(1, min(cache // item, seqs))
    return Budget(
        cache, cache, {modality: item}, {modality: 1}, {modality: items}, modality, items, {},
        32_768, cache, seqs,
    )  # fmt: skip


def beside(cache: int, width: int, reserved: int = 0) -> Shortfall:
    """The language model's own step is what is reserved, but for what stays resident."""
    demand = LanguageStep(cache, 900 * MIB, Resident(cache, width))
    return Shortfall(900 * MIB + reserved, demand, GIB)


def clips(items: int, each: int, reserved: int) -> Shortfall:
    step = WorstStep("audio", items * 25, items * each, items=items, exemplar="a.wav")
    return Shortfall(reserved, step, GIB)


def test_four_sequences_of_a_small_image_take_a_smaller_cache() -> None:
    """Finding §3 of the server conformance work: Qwen3-VL-8B, max_num_seqs 4."""
    found, at = beside(16_384, 32_768, 1296 * 32_768), budget(16_384, 324, 4)
    engine = smaller(found, at, {"image": 1})
    assert engine is not None
    batch = engine.max_num_batched_tokens
    assert batch is not None
    assert (batch % 324, engine.max_num_seqs) == (0, None)
    assert (batch - 1296) * 32_768 <= VLLM_SLACK_BYTES < (batch + 324 - 1296) * 32_768
    assert larger(found, at, {"image": 1}) == Engine(max_num_seqs=51)


def test_short_clips_take_fewer_sequences_or_as_many_dummies() -> None:
    """Finding §4 of the server conformance work: 90 clips of a second on Qwen2-Audio."""
    found, at = clips(90, 51 * MIB, 248 * MIB), budget(2250, 750, 256, "audio")
    assert smaller(found, at, {"audio": 1}) == Engine(max_num_seqs=7)
    # (90 × 51 − 150) ÷ 248 times the batch, in whole dummies.
    assert larger(found, at, {"audio": 1}) == Engine(90, 54 * 750)
    assert smaller(found, at, {"audio": 10}) is None
    assert larger(found, at, {"audio": 2}) == Engine(45, 54 * 750)
    hungry = clips(90, 200 * MIB, 248 * MIB)
    assert larger(hungry, at, {"audio": 1}) == Engine(90, 90 * 750)


def test_beside_workspaces_a_step_of_fewer_tokens_fits() -> None:
    """Of both, the encoder's step and what the experts keep."""
    step = WorstStep("image", 9984, 1150 * MIB, kept_bytes=1000 * MIB)
    engine = smaller(Shortfall(1650 * MIB, step, GIB), budget(9984, 280, 1024), {"image": 1})
    assert engine is not None
    batch = engine.max_num_batched_tokens
    assert batch is not None
    room = 1650 * MIB + VLLM_SLACK_BYTES
    assert batch % 280 == 0
    assert batch * step.nbytes <= room * 9984 < (batch + 280) * step.nbytes


def prompts(
    count: int, alone: int, each: int, reserved: int, resident: int = 0, profiled: int = 0
) -> Shortfall:
    peak, held = alone + (count - 1) * each, Resident(resident * 64, MIB // 64)
    step = PromptsStep(8192, peak * MIB, held, count, alone * MIB, profiled * MIB)
    return Shortfall(reserved * MIB, step, GIB)


def test_a_prompt_that_takes_more_than_is_reserved_takes_a_smaller_step() -> None:
    """The language model alone of vllm#52872; items are prefilled in parts, so in blocks of 256."""
    found = prompts(1, 1680, 0, 1344)
    engine = smaller(found, budget(8192, 16_384, 4), {"image": 1})
    assert engine == Engine(max_num_batched_tokens=(1344 + 150) * 8192 // 1680 // 256 * 256)
    assert smaller(found, budget(8192, 1000, 4), {"image": 1}) == Engine(
        max_num_batched_tokens=7000
    )
    assert smaller(prompts(1, 1680, 0, 1344, 200), budget(8192, 16_384, 4), {}) == Engine(
        max_num_batched_tokens=(1344 + 150) * 8192 // 1880 // 256 * 256
    )


def test_where_the_reserve_shrinks_with_the_step_it_is_smaller_still() -> None:
    found = prompts(1, 1680, 0, 1344, profiled=1344)
    engine = smaller(found, budget(8192, 16_384, 4), {"image": 1})
    assert engine == Engine(max_num_batched_tokens=150 * 8192 // (1680 - 1344) // 256 * 256)


def test_prompts_that_bring_their_states_are_fewer() -> None:
    found, at = prompts(82, 1340, 6, 1600), budget(8192, 324, 256)
    assert smaller(found, at, {"image": 1}) == Engine(max_num_seqs=1 + (1600 + 150 - 1340) // 6)
    assert larger(found, at, {"image": 1}) is None


def test_prompts_of_which_one_is_too_much_take_a_smaller_step_first() -> None:
    engine = smaller(prompts(82, 1900, 6, 1600), budget(8192, 16_384, 256), {"image": 1})
    taken = 1900 + 81 * 6
    assert engine == Engine(max_num_batched_tokens=(1600 + 150) * 8192 // taken // 256 * 256)
    # One of four sequences would do, and is no way to serve.
    few = smaller(prompts(8, 1490, 6, 1344), budget(8192, 16_384, 8), {"image": 1})
    assert few == Engine(max_num_batched_tokens=(1344 + 150) * 8192 // 1532 // 256 * 256)


def test_what_is_the_least_already_has_no_cure() -> None:
    assert smaller(beside(324, 1 << 20), budget(324, 324, 4), {"image": 1}) is None
    assert larger(beside(324, 1 << 20), budget(324, 324, 4), {"image": 1}) is None


def test_an_item_that_the_profile_does_not_run_is_not_mended_by_a_smaller_cache() -> None:
    step = WorstStep("video", 8748, 900 * MIB, Resident(1000, 7168))
    found, at = Shortfall(600 * MIB, step, GIB), budget(8748, 7309, 4)
    assert smaller(found, at, {"image": 1, "video": 1}) is None
    assert larger(found, at, {"image": 1, "video": 1}) is None


@given(st.integers(1, 400), st.integers(1, 100), st.integers(1, 2000), st.integers(1, 8))
def test_so_many_sequences_take_what_is_reserved_at_most(
    items: int, each: int, reserved: int, count: int
) -> None:
    found = clips(items, each * MIB, reserved * MIB)
    engine = smaller(found, budget(750 * 100, 750, 4096, "audio"), {"audio": count})
    if engine is not None and engine.max_num_seqs is not None:
        taken = engine.max_num_seqs * count * each * MIB
        assert taken <= reserved * MIB + VLLM_SLACK_BYTES < taken + count * each * MIB
