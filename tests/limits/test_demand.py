"""Memory that serving takes beside what startup reserved."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.checks.check import RemedyStyle
from mmcalib.checks.items import excess_check
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.limits.costs import ItemCost
from mmcalib.limits.demand import (
    Excess,
    LanguageStep,
    PromptsStep,
    Resident,
    Shortfall,
    WorstStep,
    find_excesses,
    fix_kv_cache_size,
    raise_reserve,
    shrink_step,
)
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from tests import builders
from tests.limits.costed import cost, table
from tests.workflows.rehearsals import GIB, limits, rehearsed


@pytest.mark.parametrize(
    ("worst", "outside", "passes", "holds"),
    [
        (1000, 1 << 30, True, True),
        (1000 + VLLM_SLACK_BYTES, 1 << 30, True, True),
        (1001 + VLLM_SLACK_BYTES, 1 << 30, False, True),
        (1007, 7, True, True),
        (1008, 7, False, False),
        (1008, 8, True, True),
        (1000, 0, True, True),
        (1001, 0, False, False),
        (1000 + VLLM_SLACK_BYTES, 0, False, False),
        (1001, -1, False, False),
        (1000, -1, True, True),
    ],
)
def test_bytes_decide_with_the_slack_outside_the_reserve(
    worst: int, outside: int, passes: bool, holds: bool
) -> None:
    found = Shortfall(1000, WorstStep(16_384, worst, modality="image"), outside_bytes=outside)
    assert (found.passes, found.holds) == (passes, holds)
    assert found.is_tight == (outside < 1 << 30)
    assert found.nbytes == worst - 1000
    roomy = replace(found, reserved_bytes=1000 + worst + VLLM_SLACK_BYTES)
    assert (roomy.passes, roomy.is_tight) == (True, False)


MIB = 1 << 20


def beside(cache: int, width: int, reserved: int = 0) -> Shortfall:
    """The language model's own step is what is reserved, but for what stays resident."""
    demand = LanguageStep(cache, 900 * MIB, Resident(cache, width))
    return Shortfall(900 * MIB + reserved, demand, GIB)


def clips(items: int, each: int, reserved: int) -> Shortfall:
    step = WorstStep(items * 25, items * each, modality="audio", items=items, exemplar="a.wav")
    return Shortfall(reserved, step, GIB)


def test_four_sequences_of_a_small_image_take_a_smaller_cache() -> None:
    """Qwen3-VL-8B with max_num_seqs 4."""
    found, at = beside(16_384, 32_768, 1296 * 32_768), limits(16_384, 4)
    engine = shrink_step(found, at, {"image": 1})
    (batch,) = engine.values()
    assert (batch % 324, *engine) == (0, "max_num_batched_tokens")
    assert (batch - 1296) * 32_768 <= VLLM_SLACK_BYTES < (batch + 324 - 1296) * 32_768
    assert raise_reserve(found, at, {"image": 1}) == {"max_num_seqs": 51}


def test_short_clips_take_fewer_sequences_or_as_many_dummies() -> None:
    """90 clips of a second on Qwen2-Audio."""
    found, at = clips(90, 51 * MIB, 248 * MIB), limits(2250, 256, 750, "audio")
    assert shrink_step(found, at, {"audio": 1}) == {"max_num_seqs": 7}
    # (90 × 51 − 150) ÷ 248 times the batch, in whole dummies.
    assert list(raise_reserve(found, at, {"audio": 1}).values()) == [90, 54 * 750]
    assert shrink_step(found, at, {"audio": 10}) == {}
    assert list(raise_reserve(found, at, {"audio": 2}).values()) == [45, 54 * 750]
    hungry = clips(90, 200 * MIB, 248 * MIB)
    assert list(raise_reserve(hungry, at, {"audio": 1}).values()) == [90, 90 * 750]


def prompts(
    count: int, alone: int, each: int, reserved: int, resident: int = 0, profiled: int = 0
) -> Shortfall:
    peak, held = alone + (count - 1) * each, Resident(resident * 64, MIB // 64)
    more = {"prompts": count, "alone_bytes": alone * MIB, "profiled_bytes": profiled * MIB}
    return Shortfall(reserved * MIB, PromptsStep(8192, peak * MIB, held, **more), GIB)


def test_a_prompt_that_takes_more_than_is_reserved_takes_a_smaller_step() -> None:
    """The language model alone of vllm#52872; items are prefilled in parts, so in blocks of 256."""
    found = prompts(1, 1680, 0, 1344)
    at, name = limits(8192, 4, 16_384), "max_num_batched_tokens"
    assert shrink_step(found, at, {}) == {name: (1344 + 150) * 8192 // 1680 // 256 * 256}
    assert shrink_step(found, limits(8192, 4, 1000), {"image": 1}) == {name: 7000}
    found = prompts(1, 1680, 0, 1344, 200)
    assert shrink_step(found, at, {}) == {name: (1344 + 150) * 8192 // 1880 // 256 * 256}


def test_prompts_that_bring_their_states_are_fewer() -> None:
    found, at = prompts(82, 1340, 6, 1600), limits(8192, 256)
    assert shrink_step(found, at, {"image": 1}) == {"max_num_seqs": 1 + (1600 + 150 - 1340) // 6}
    assert raise_reserve(found, at, {"image": 1}) == {}


def test_the_least_has_no_remedy() -> None:
    assert shrink_step(beside(324, 1 << 20), limits(324, 4), {"image": 1}) == {}
    assert raise_reserve(beside(324, 1 << 20), limits(324, 4), {"image": 1}) == {}


@given(st.integers(1, 400), st.integers(1, 100), st.integers(1, 2000), st.integers(1, 8))
def test_so_many_sequences_take_what_is_reserved_at_most(items, each, reserved, count: int) -> None:
    found = clips(items, each * MIB, reserved * MIB)
    engine = shrink_step(found, limits(750 * 100, 4096, 750, "audio"), {"audio": count})
    if seqs := engine.get("max_num_seqs"):
        taken = seqs * count * each * MIB
        assert taken <= reserved * MIB + VLLM_SLACK_BYTES < taken + count * each * MIB


@given(
    peak=st.integers(0, 200 * MIB),
    reserved=st.integers(0, 200 * MIB),
    outside=st.integers(0, 40 * MIB),
    total=st.integers(20 * MIB, 100 * MIB),
)
def test_a_lower_share_leaves_enough(peak: int, reserved: int, outside: int, total: int) -> None:
    """In whole hundredths, and the highest such share that does."""
    requested = max(0, total - outside)
    step, free = LanguageStep(0, peak), total - requested
    found = Shortfall(reserved, step, free, 0, requested, total)
    share = found.fitting_utilization()
    if found.holds or not share:
        assert found.holds or peak - reserved >= 0.99 * total
        return

    def fits(at: float) -> bool:
        requested = math.floor(at * total)
        return replace(found, requested_bytes=requested, outside_bytes=total - requested).holds

    assert fits(share)
    assert not fits(share + 0.0101)


# Qwen2-Audio's input features of any sound: 128 mel bins by 3,000 frames, in 4 bytes.
PADDED = 128 * 3000 * 4
RATE = 16_000


def sound(seconds: float) -> ItemCost:
    shape = AudioShape(int(seconds * RATE), RATE)
    return cost(shape, int(25 * seconds), tensor_bytes=PADDED)


LISTENER = builders.budget(2250, dummies={"audio": Dummy(750, PADDED, {})})


def excess_of(*costs: ItemCost, of: Budget = LISTENER, count: int = 1) -> list[Excess]:
    return list(find_excesses(table(*costs), of, of, {costs[0].shape.modality: count}))


def test_clips_that_are_padded_are_as_heavy_as_the_longest() -> None:
    """Three clips of 30 s are profiled; 90 of one second have as many tokens."""
    (excess,) = excess_of(sound(30), sound(1))
    assert (excess.items, excess.times, excess.max_num_seqs) == (90, 30.0, 3)
    assert excess.cost.embeds == 25


def test_more_tiles_for_as_many_tokens_are_one() -> None:
    """LLaVA-OneVision merges the tokens of many tiles: one image is beyond what is profiled."""
    model = builders.budget(8748, dummies={"image": Dummy(8748, 15_000, {})})
    image = cost(ImageShape(4000, 1000), 7309, tensor_bytes=37_000)
    (excess,) = excess_of(image, of=model)
    assert (excess.items, excess.max_num_seqs) == (1, 0)
    check = excess_check(excess, RemedyStyle.FLAGS)
    assert check.name == "image input memory"
    assert check.status == "warn"
    assert "max-num-seqs" not in check.remedy


@given(st.lists(st.integers(1, 750), min_size=1), st.integers(1, 300), st.integers(1, 4))
def test_the_remedy_is_one(embeds: list[int], seqs: int, count: int) -> None:
    costs = [cost(AudioShape(n, RATE), n, tensor_bytes=PADDED) for n in set(embeds)]
    for excess in excess_of(*costs, of=replace(LISTENER, max_num_seqs=seqs), count=count):
        assert excess.max_num_seqs < seqs
        if excess.max_num_seqs:
            kept = replace(LISTENER, max_num_seqs=excess.max_num_seqs)
            assert excess_of(*costs, of=kept, count=count) == []


def test_beside_workspaces_a_step_of_fewer_tokens_fits() -> None:
    """Both count: the encoder's step and what the experts keep."""
    step = WorstStep(9984, 1150 * MIB, kept_bytes=1000 * MIB, modality="image")
    engine = shrink_step(Shortfall(1650 * MIB, step, GIB), limits(9984, 1024, 280), {"image": 1})
    batch = engine["max_num_batched_tokens"]
    room = 1650 * MIB + VLLM_SLACK_BYTES
    assert batch % 280 == 0
    assert batch * step.nbytes <= room * 9984 < (batch + 280) * step.nbytes


@given(st.integers(200 * MIB, 1 << 40))
def test_it_is_what_is_left_less_the_slack_in_whole_mib(left: int) -> None:
    pool = builders.some(fix_kv_cache_size(rehearsed(kv_cache_bytes=left)))
    assert pool.kv_cache_memory_bytes % MIB == 0
    assert 0 <= left - VLLM_SLACK_BYTES - pool.kv_cache_memory_bytes < MIB


@pytest.mark.parametrize(
    "changes", [{"kv_cache_tokens": None}, {"kv_cache_bytes": VLLM_SLACK_BYTES + MIB - 1}]
)
def test_where_nothing_is_left_there_is_none(changes: dict[str, int | None]) -> None:
    assert fix_kv_cache_size(rehearsed(**changes)) is None
