"""vLLM's own startup of real models on an imaginary GPU, end to end."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from mmcalib.domain.memory import RehearsedMemory
from mmcalib.engine.messages import Rehearse
from mmcalib.errors import EngineError
from mmcalib.models.gpus import find_gpu as find_gpu
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.releases.release import VLLM_0_31, VLLM_0_32
from tests.builders import left_of_request, some
from tests.rehearsal.conftest import Theatre
from tests.upstream import before

pytestmark = [pytest.mark.engine, pytest.mark.slow]
GIB = 1 << 30
# What vLLM logs as "Model loading took 7.1557 GiB" for this checkpoint on real GPUs.
PUBLISHED_WEIGHTS_BYTES = round(7.1557 * GIB)
# 36 layers of 2 heads of 128 numbers of 2 B, for keys and for values.
KV_BYTES_PER_TOKEN = 36 * 2 * 128 * 2 * 2
PARTS = ("weights", "buffers", "activation_peak", "non_torch", "cudagraph")
IMAGE_ONLY: dict[str, Any] = {"limit_mm_per_prompt": {"image": 1, "video": 0}}


def encoder_peak(rehearsed: RehearsedMemory) -> int:
    return max(phase.peak_bytes for phase in rehearsed.phases if phase.name == "encoder")


def test_the_weights_are_those_that_real_gpus_report(qwen: RehearsedMemory) -> None:
    assert qwen.weights_bytes == pytest.approx(PUBLISHED_WEIGHTS_BYTES, rel=0.001)


def test_a_token_s_kv_cache_follows_from_the_heads(qwen: RehearsedMemory) -> None:
    assert qwen.kv_bytes_per_token == KV_BYTES_PER_TOKEN == 36_864
    # Whole blocks only: less than one of 16 tokens is lost.
    lost = qwen.kv_cache_bytes - some(qwen.kv_cache_tokens) * KV_BYTES_PER_TOKEN
    assert 0 <= lost < 16 * KV_BYTES_PER_TOKEN
    assert qwen.problem == ""


def test_the_gpu_is_the_one_that_was_asked_for(qwen: RehearsedMemory, h100: Theatre) -> None:
    assert qwen.total_bytes == h100.gpu.total_bytes
    assert qwen.attention == qwen.encoder_attention == "FLASH_ATTN"
    assert (qwen.dtype, qwen.tensor_parallel_size) == ("bfloat16", 1)
    assert qwen.requested_bytes < qwen.total_bytes


def test_the_parts_add_up_to_what_vllm_asked_for(qwen: RehearsedMemory) -> None:
    assert qwen.kv_cache_bytes == left_of_request(qwen, *PARTS)
    assert qwen.buffers_bytes > 0


@before(VLLM_0_31, "blocks that the profile splits stay half used, as torch's allocator has them")
def test_what_is_kept_beside_the_weights_is_little(qwen: RehearsedMemory) -> None:
    assert qwen.buffers_bytes < GIB


def test_the_peak_is_that_of_one_phase_and_the_encoder_s_by_default(qwen: RehearsedMemory) -> None:
    assert [phase.name for phase in qwen.phases] == ["encoder", "language model", "sampler"]
    assert qwen.activation_peak_bytes == max(phase.peak_bytes for phase in qwen.phases)
    assert qwen.activation_peak_bytes == encoder_peak(qwen)


def test_the_peak_is_explained_by_tensors_with_the_modules_that_made_them(qwen) -> None:
    for phase in qwen.phases:
        sizes = [one.nbytes for one in phase.largest]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes) <= phase.peak_bytes
    encoder = qwen.phases[0]
    first = encoder.largest[0]
    assert first.module.startswith("visual.blocks.0.mlp.")
    # Of 114,688 × 4 patches, gate and up side by side.
    assert (first.shape, first.dtype) == ((458_752, 2 * 3420), "bfloat16")
    assert sum(one.nbytes for one in encoder.largest) > 0.95 * encoder.peak_bytes
    language = qwen.phases[1]
    assert any(one.module.startswith("language_model.model.layers.") for one in language.largest)


def test_nobody_s_value_was_guessed(qwen: RehearsedMemory) -> None:
    assert not [one for one in qwen.assumptions if "count as zero" in one]
    assert any("total memory" in one for one in qwen.assumptions)


def test_without_video_the_encoder_takes_a_seventh(h100: Theatre, qwen: RehearsedMemory) -> None:
    """114,688 tokens against 16,384: the peak follows the profiled item."""
    images = h100.rehearse(**IMAGE_ONLY)
    assert some(images.budget).encoder_compute_budget == 16_384
    assert encoder_peak(images) == pytest.approx(encoder_peak(qwen) / 7, rel=0.05)
    assert images.weights_bytes == qwen.weights_bytes
    gained = images.kv_cache_bytes - qwen.kv_cache_bytes
    assert gained > 0.95 * (encoder_peak(qwen) - encoder_peak(images))


def test_fewer_pixels_and_fewer_sequences_leave_more_for_the_cache(h100: Theatre) -> None:
    wide = h100.rehearse(**IMAGE_ONLY)
    capped = h100.rehearse(**IMAGE_ONLY, mm_processor_kwargs={"max_pixels": 1_003_520})
    few = h100.rehearse(**IMAGE_ONLY, max_num_seqs=16)
    assert encoder_peak(capped) < encoder_peak(wide)
    sampler = {one.name: one.peak_bytes for one in wide.phases}["sampler"]
    assert {one.name: one.peak_bytes for one in few.phases}["sampler"] < sampler / 2
    assert few.cudagraphs < wide.cudagraphs


def test_the_same_config_gives_the_same_bytes_whatever_was_rehearsed_between(h100: Theatre) -> None:
    first = h100.bytes_of(max_model_len=32_768)
    again = h100.bytes_of(max_model_len=32_768)
    h100.rehearse(**IMAGE_ONLY, max_num_batched_tokens=4096)
    h100.rehearse("Qwen/Qwen2.5-VL-7B-Instruct", max_model_len=8192)
    with pytest.raises(EngineError):
        h100.rehearse(max_model_len=10**9)
    assert first == again == h100.bytes_of(max_model_len=32_768)


def test_what_a_model_builds_and_drops_stays_until_vllm_collects(h100: Theatre) -> None:
    """GLM-OCR builds two vision towers. Where Python collected by chance, 140 to 240 MB stayed."""
    assert h100.rehearse("zai-org/GLM-OCR", max_model_len=32_768).buffers_bytes > 400_000_000


def test_a_share_of_the_memory_changes_only_the_cache(h100: Theatre) -> None:
    most = h100.bytes_of(**IMAGE_ONLY, gpu_memory_utilization=0.9)
    less = h100.bytes_of(**IMAGE_ONLY, gpu_memory_utilization=0.5)
    assert most.kv_cache_bytes - less.kv_cache_bytes == most.requested_bytes - less.requested_bytes
    assert (most.activation_peak_bytes, most.phases) == (less.activation_peak_bytes, less.phases)


def test_a_cache_of_a_given_size_leaves_the_rest_free(h100: Theatre, qwen: RehearsedMemory) -> None:
    less = h100.rehearse(kv_cache_memory_bytes=qwen.kv_cache_bytes - GIB)
    assert (qwen.spare_bytes, less.kv_cache_bytes) == (0, qwen.kv_cache_bytes - GIB)
    # vLLM's own sum counts the segments that are loaded, and not only what lives in them.
    assert GIB <= less.spare_bytes < GIB + VLLM_SLACK_BYTES
    assert h100.rehearse(kv_cache_memory_bytes=qwen.kv_cache_bytes + GIB).spare_bytes == 0


def test_a_context_that_vllm_fits_and_replicas_that_it_starts_are_said(h100: Theatre) -> None:
    fitted = h100.rehearse(max_model_len=-1, kv_cache_memory_bytes=1 << 30, data_parallel_size=2)
    assert 16 < some(fitted.budget).max_model_len <= some(fitted.kv_cache_tokens)
    assert any("each of 2 replicas" in one for one in fitted.assumptions)


def test_one_of_two_ranks_holds_half_of_the_layers_weights(h100: Theatre, qwen) -> None:
    half = h100.rehearse(tensor_parallel_size=2)
    assert half.tensor_parallel_size == 2
    assert 0.5 < half.weights_bytes / qwen.weights_bytes < 0.75
    assert half.kv_bytes_per_token == qwen.kv_bytes_per_token / 2
    # NCCL connects before vLLM's first look at the memory: it lessens what is free, not the pool.
    (nccl,) = half.before_snapshot
    assert (nccl.name, nccl.label, qwen.before_snapshot) == ("NCCL", "assumed", ())
    assert half.free_bytes == h100.gpu.free_at_start - nccl.nbytes
    assert half.kv_cache_bytes == left_of_request(half, *PARTS)


@pytest.mark.skipif(not VLLM_0_32.is_reached, reason="its warm-up samples before graphs")
def test_the_sampler_s_warm_up_takes_what_the_profile_does_not_reserve(h100: Theatre) -> None:
    """It holds 14 bytes per logit: 16-bit logits, and 32-bit copies for penalties, top-k, top-p."""
    small = {"video": 0, "image": {"count": 1, "width": 512, "height": 512}}
    many: dict[str, Any] = {"limit_mm_per_prompt": small, "max_num_seqs": 1024}
    found = h100.rehearse(**many)
    (warm_up,) = found.after_pool
    assert (warm_up.name, warm_up.label) == ("sampler warm-up", "rehearsed")
    peak = max(one.peak_bytes for one in found.phases if one.name != "encoder")
    takes = warm_up.nbytes + peak + found.cudagraph_bytes
    assert takes == pytest.approx(14 * 1024 * 151_936, rel=0.03)
    assert h100.rehearse(**{**many, "max_num_seqs": 64}).after_pool == ()
    assert h100.rehearse(**many, enforce_eager=True).after_pool == ()
    cold = h100.rehearse(**many, kernel_config={"enable_jit_warmup": False})
    assert (cold.after_pool, cold.kv_cache_bytes) == ((), found.kv_cache_bytes)
    failed = h100.rehearse(**many, logits_processors=["tests.rehearsal.picky:Picky"])
    assert failed.after_pool == ()
    said = "the sampler's warm-up was not rehearsed: needs extra_args"
    assert failed.assumptions == (*found.assumptions, said)
    assert failed.kv_cache_bytes == found.kv_cache_bytes


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed")
def test_a_library_that_vllm_does_not_bring_is_named_with_its_install(h100: Theatre) -> None:
    with pytest.raises(EngineError, match="requires the timm library") as caught:
        h100.rehearse("google/gemma-3n-E4B-it")
    assert caught.value.hint == "pip install timm"


def test_another_gpu_is_refused_in_one_line(h100: Theatre, qwen: RehearsedMemory) -> None:
    request = Rehearse({"model": str(h100.folder())}, find_gpu("RTX-3060-12G"))
    with pytest.raises(EngineError, match="simulates H100-80G, not RTX-3060-12G") as caught:
        h100.host.ask(request, "rehearsing")
    assert "\n" not in caught.value.message
    assert h100.bytes_of() == replace(qwen, seconds=0.0)


@pytest.mark.parametrize(
    ("engine_args", "words"),
    [
        ({"max_model_len": 10**9}, "max_model_len"),
        ({"tensor_parallel_size": 3}, "divisible by tensor parallel size"),
    ],
)
def test_what_vllm_refuses_is_refused_in_its_own_words(h100, engine_args, words: str) -> None:
    with pytest.raises(EngineError, match=r"\(vLLM, while rehearsing\)") as caught:
        h100.rehearse(**engine_args)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_a_gpu_that_is_too_small_says_by_how_much(theatres: Callable[[str], Theatre]) -> None:
    small = theatres("RTX-3060-12G").rehearse("Qwen/Qwen2.5-VL-7B-Instruct")
    assert small.weights_bytes > small.total_bytes
    assert small.kv_cache_bytes < 0
    assert (small.kv_cache_tokens, small.max_concurrency) == (None, None)
    assert "No available memory for the cache blocks" in small.problem
    assert "\n" not in small.problem
