"""Steps that no startup profile runs: outputs, their merge, other encoder steps; and
FlashInfer's workspaces, inside vLLM's estimate only if graphs hold them.
"""

from collections.abc import Callable
from typing import Any

import pytest

from mmcalib.domain.memory import EncoderOutputs, EncoderStep, RehearsedMemory
from mmcalib.domain.shapes import AudioShape, ImageShape
from tests.builders import some
from tests.engine.conftest import QWEN
from tests.rehearsal.conftest import Theatre
from tests.rehearsal.test_rehearse import IMAGE_ONLY, encoder_peak

pytestmark = [pytest.mark.engine, pytest.mark.slow]
QWEN3, QWEN2_AUDIO = "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen2-Audio-7B-Instruct"
MOE = "Qwen/Qwen3-VL-30B-A3B-Instruct"
CAPPED = {"mm_processor_kwargs": {"size": {"longest_edge": 331_776, "shortest_edge": 65_536}}}
FOUR: dict[str, Any] = {**IMAGE_ONLY, "max_num_seqs": 4, "max_model_len": 8192}
STEP = EncoderStep(ImageShape(576, 576), 4)
HIDDEN, BF16 = 2048, 2
# What cuBLAS keeps on an H100 once it has run.
WORKSPACE_BYTES = 32 << 20


@pytest.fixture(scope="module")
def four(h100: Theatre) -> RehearsedMemory:
    """Qwen3-VL-2B with four sequences of one small image, which a step of one image follows."""
    broken = EncoderStep(ImageShape(1, 4000), 4)
    return h100.rehearse(QWEN3, STEP, broken, **CAPPED, **FOUR)


def test_the_cache_is_as_wide_as_what_the_encoder_makes(four: RehearsedMemory) -> None:
    """Qwen3-VL-2B caches 16,384 bytes a token; its decoder takes 4,096."""
    assert four.outputs == EncoderOutputs(16_384, held_bytes=1296 * 16_384, shared=True)
    assert four.encoder_cache_bytes == some(four.budget).encoder_cache_size * 16_384


def test_a_skipped_profile_knows_the_width_all_the_same(h100: Theatre) -> None:
    found = h100.rehearse(QWEN3, **CAPPED, **FOUR, skip_mm_profiling=True)
    assert found.encoder_tokens == 0
    assert found.outputs == EncoderOutputs(16_384, held_bytes=0, shared=True)
    assert found.merge_peak_bytes is not None


def test_elsewhere_it_is_as_wide_as_the_decoder(qwen: RehearsedMemory) -> None:
    held_bytes = 114_688 * HIDDEN * BF16
    assert qwen.outputs == EncoderOutputs(HIDDEN * BF16, held_bytes, shared=None)


def test_merging_deepstack_takes_eleven_widths_of_each_token(four: RehearsedMemory) -> None:
    """It takes 11 × tokens × hidden × 2 B above the cache, outside the profile."""
    merged = 11 * some(four.budget).max_num_batched_tokens * HIDDEN * BF16
    assert 0 <= some(four.merge_peak_bytes) - merged < 1.1 * WORKSPACE_BYTES


def test_a_step_like_the_profile_s_takes_what_that_takes(four: RehearsedMemory) -> None:
    found = four.steps[0]
    assert (found.tokens, found.problem) == (1296, "")
    assert found.peak_bytes == pytest.approx(encoder_peak(four), rel=0.05)


def test_a_step_that_vllm_refuses_says_why_and_leaves_the_rest(four: RehearsedMemory) -> None:
    refused = four.steps[1]
    assert (refused.peak_bytes, refused.tokens) == (None, None)
    assert "aspect ratio" in refused.problem
    assert four.kv_cache_tokens is not None


def test_short_clips_take_what_long_ones_take(h100: Theatre) -> None:
    """90 clips of 1 s are padded to 30 s each; vLLM profiles 3."""
    second, half_minute = AudioShape(16_000, 16_000), AudioShape(480_000, 16_000)
    steps = [EncoderStep(second, count) for count in (3, 30, 90)]
    args = {"max_num_batched_tokens": 2250}
    found = h100.rehearse(QWEN2_AUDIO, *steps, EncoderStep(half_minute, 3), **args)
    three, thirty, many, long = found.steps
    assert (three.tokens, long.tokens, many.tokens) == (75, 2250, 2250)
    assert three.peak_bytes == pytest.approx(long.peak_bytes, rel=0.02)
    assert long.peak_bytes == pytest.approx(encoder_peak(found), rel=0.02)
    # Beside what the first forward pass of a process leaves.
    each = (some(thirty.peak_bytes) - some(three.peak_bytes)) / 27
    assert many.peak_bytes == pytest.approx(some(three.peak_bytes) + 87 * each, rel=0.02)
    assert not [one for one in found.assumptions if "count as zero" in one]


def test_what_experts_keep_is_beside_the_encoder_when_it_runs_again(qwen, h100: Theatre) -> None:
    """The profile's encoder runs before its experts ask for their workspace, which stays."""
    alone = h100.rehearse(MOE, **FOUR)
    (found,) = h100.rehearse(MOE, STEP, **FOUR).steps
    # Two of a step's intermediates, of as many rows as tokens go to experts.
    assert alone.kept_bytes > 100 << 20
    most = alone.kept_bytes + encoder_peak(alone)
    assert alone.kept_bytes < some(found.peak_bytes) < most
    assert qwen.kept_bytes == 0


MIB = 1 << 20
# VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE (vllm/envs.py), and what a wrapper keeps for its plan.
WORKSPACE, PLAN = 394 * MIB, 8 * MIB
ARGS: dict[str, Any] = {"max_model_len": 8192, "max_num_batched_tokens": 2048}


@pytest.fixture(scope="module")
def blackwell(theatres: Callable[[str], Theatre]) -> Theatre:
    return theatres("RTX-5090")


def modes(theatre: Theatre, mode: str, **more: Any) -> RehearsedMemory:
    return theatre.rehearse(QWEN, **{**ARGS, **more}, compilation_config={"cudagraph_mode": mode})


def test_flashattention_keeps_nothing(blackwell: Theatre) -> None:
    found = modes(blackwell, "FULL_DECODE_ONLY")
    assert found.attention == "FLASH_ATTN"
    assert found.cudagraph_attention_bytes == 0


def test_the_pool_is_smaller_by_the_workspace_of_full_graphs(blackwell: Theatre) -> None:
    """XQA's, for decoding. The prompts' one exists earlier (`init_attn_backend`), unreserved."""
    found = modes(blackwell, "FULL_DECODE_ONLY", kv_cache_dtype="fp8")
    assert found.attention == "FLASHINFER"
    assert found.cudagraph_attention_bytes == WORKSPACE
    assert found.kept_bytes >= WORKSPACE + PLAN
    whole = modes(blackwell, "NONE", kv_cache_dtype="fp8")
    allowance = found.cudagraph_bytes - found.cudagraph_attention_bytes
    assert whole.kv_cache_bytes - found.kv_cache_bytes == allowance + WORKSPACE
    assert any("vLLM's graph estimate adds 0.38 GiB" in said for said in found.assumptions)


def test_long_steps_ask_for_more(blackwell: Theatre) -> None:
    """Since 0.26: 16 bytes for each token, head and entry (`_get_workspace_buffer`)."""
    tokens, heads, width = 16_384, 16, 128
    kept = [
        modes(blackwell, "FULL_DECODE_ONLY", kv_cache_dtype="fp8", max_num_batched_tokens=most)
        for most in (2048, tokens)
    ]
    more = kept[1].kept_bytes - kept[0].kept_bytes
    assert more == tokens * heads * width * 16 - WORKSPACE


def test_every_rehearsal_finds_them_anew(blackwell: Theatre) -> None:
    """XQA's is in a global of vLLM's module, which outlives a worker."""
    first = blackwell.bytes_of(QWEN, **ARGS, kv_cache_dtype="fp8")
    assert first.cudagraph_attention_bytes == WORKSPACE + PLAN
    assert first == blackwell.bytes_of(QWEN, **ARGS, kv_cache_dtype="fp8")
