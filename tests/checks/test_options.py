"""The table of checks, and options whose memory or caps no startup profile shows (0.32)."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmcalib.checks import catalogue
from mmcalib.checks.catalogue import CHECKS, check_of_code
from mmcalib.checks.check import Check, RemedyStyle, Taken
from mmcalib.checks.facts import CheckFacts, JudgedConfig, OptionFacts
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.errors import UsageError
from mmcalib.limits.values import Count, ProfileReserve
from mmcalib.workflows.judging import OPTION_RULES, judge
from tests.builders import budget
from tests.limits.costed import table
from tests.workflows.rehearsals import GIB, peaks, rehearsed

# Qwen2.5-VL-3B with image 2 and video 1, and with images alone.
BUDGET = budget(
    114_688,
    {"image": 16_384, "video": 114_688},
    max_items_per_prompt={"image": 2, "video": 1},
    dummies={"image": Dummy(16_384, 0, {}), "video": Dummy(114_688, 0, {})},
    max_model_len=128_000,
    max_num_batched_tokens=8192,
)
KNOWN = OptionFacts(vocab_size=151_936)
MEMORY = rehearsed(
    phases=peaks(14 * GIB, GIB),
    encoder_tokens=114_688,
    encoder_cache_bytes=GIB // 2,
    activation_peak_bytes=15 * GIB,
    runner="V1",
)
REHEARSED = replace(KNOWN, memory=MEMORY, steps={"video": rehearsed(phases=peaks(15 * GIB, GIB))})
GRAPHS = {"compilation_config": {"cudagraph_mm_encoder": True}}
DATA = {"mm_encoder_tp_mode": "data", "tensor_parallel_size": 4}


def every(
    args: Mapping[str, Any], known: OptionFacts = KNOWN, budget: Budget = BUDGET, **limits: int
) -> list[Check]:
    """The findings of these arguments, under these limits."""
    most = {"image": 2, "video": 1, **limits}
    counts: Any = {modality: Count(count, "", "given") for modality, count in most.items()}
    judged = JudgedConfig(dict(args), counts, budget, budget, ProfileReserve(0, 0), table())
    return list(judge(OPTION_RULES, CheckFacts(RemedyStyle.LINES, judged, options=known)))


def only(args: Mapping[str, Any], known: OptionFacts = KNOWN, **limits: Any) -> Check:
    (found,) = every(args, known, **limits)
    return found


def test_options_that_nobody_set_have_no_finding() -> None:
    off = {"video_pruning_rate": 0.0, "mm_ipc_gpu_memory_gb": 0, "enable_mm_embeds": False}
    assert every(off, replace(REHEARSED, served={"trust_request_mm_kwargs": False})) == []
    one_rank = {**DATA, "tensor_parallel_size": 1}
    weights = {**DATA, "mm_encoder_tp_mode": "weights"}
    for args in (one_rank, weights, {"compilation_config": {"cudagraph_mm_encoder": False}}):
        assert every(args, REHEARSED) == []


def test_pruned_videos_are_encoded_whole() -> None:
    """The scheduler counts kept tokens: half of them pruned is twice the encoder's work."""
    found = only({"video_pruning_rate": 0.5}, REHEARSED)
    assert (found.name, found.status) == ("memory for video pruning", "warn")
    assert "encodes up to 2.00 times as many, 229,376" in found.detail
    assert "compute_retained_tokens_count" in found.detail
    assert found.taken == Taken("frames that video_pruning_rate drops", 15 * GIB)
    assert only({"video_pruning_rate": 0.75}).taken is None
    assert every({"video_pruning_rate": 0.5}, video=0) == []


def test_graphs_of_the_encoder_have_a_pool_of_their_own() -> None:
    found = only(GRAPHS, REHEARSED)
    assert (found.name, found.status) == ("memory for encoder CUDA graphs", "warn")
    assert "its graphs, the largest of 8,192 tokens" in found.detail
    assert "of up to 114,688 tokens, runs eagerly" in found.detail
    assert found.taken == Taken("CUDA graphs of the encoder", GIB)
    given = {"encoder_cudagraph_token_budgets": [114_688, 1024], "cudagraph_mm_encoder": True}
    most = only({"compilation_config": given}, REHEARSED)
    assert "its graphs, the largest of 114,688 tokens" in most.detail
    assert "runs eagerly" not in most.detail
    assert most.taken == Taken("CUDA graphs of the encoder", 14 * GIB)
    assert only(GRAPHS).taken is None
    eager = only({**GRAPHS, "enforce_eager": True})
    assert "captures no graph" in eager.detail


def test_memory_of_the_api_server_is_part_of_the_buffers() -> None:
    found = only({"mm_ipc_gpu_memory_gb": 2})
    assert (found.name, found.status) == ("memory of the API server", "warn")
    assert "2.00 GiB less KV cache" in found.detail
    assert found.taken == Taken("of buffers: video decoding by the API server", 2 * GIB)
    decoder = {"media_io_kwargs": {"video": {"backend": "pynvvideocodec"}}}
    assert only({"mm_ipc_gpu_memory_gb": 2, **decoder}).status == "pass"
    assert "no video is served" in only({"mm_ipc_gpu_memory_gb": 2}, video=0).detail


def test_trusted_requests_void_every_cap() -> None:
    found = only({}, replace(KNOWN, served={"trust_request_mm_kwargs": True}))
    assert (found.name, found.status) == ("per-request processor options", "warn")
    assert "validate_request_mm_kwargs" in found.detail
    assert "whole encoder cache, 114,688 tokens" in found.detail
    assert found.taken is None


def test_embeddings_of_clients_are_held_though_nothing_is_profiled() -> None:
    some = only({"enable_mm_embeds": True}, REHEARSED)
    assert "up to 114,688 tokens in the encoder cache (0.50 GiB, computed)" in some.detail
    assert some.taken is None
    found = only({"enable_mm_embeds": True}, REHEARSED, image=0, video=0)
    assert (found.name, found.status) == ("embeddings from clients", "warn")
    assert "any number of image, video, which is limited to 0" in found.detail
    assert "vLLM profiles none of it" in found.detail
    assert found.taken == Taken("embeddings that clients send", GIB // 2)


@pytest.mark.parametrize(
    ("known", "status", "tokens"),
    [
        (KNOWN, "warn", 8192),
        (REHEARSED, "pass", 8192),
        (replace(KNOWN, memory=replace(MEMORY, activation_peak_bytes=GIB)), "warn", 8192),
        (replace(KNOWN, memory=rehearsed(runner="V2", activation_peak_bytes=GIB)), "pass", 1024),
    ],
)
def test_prompt_logprobs_take_the_logits_of_a_chunk(known, status: str, tokens: int) -> None:
    found = only({"max_logprobs": 50}, known)
    assert (found.name, found.status) == ("memory for prompt_logprobs", status)
    assert f"logits of all {tokens:,} tokens of a chunk, 151,936 each" in found.detail
    assert ("PromptLogprobsWorker" in found.detail) == (tokens == 1024)
    assert found.taken == Taken("logits of prompt_logprobs", tokens * 151_936 * 6)


def test_one_video_is_one_ranks_alone() -> None:
    """Seven images are dealt out to four ranks, two at most on one; a video is not."""
    images = replace(BUDGET, profiled_modality="image", profiled_items=7)
    found = only(DATA, REHEARSED, budget=images)
    assert (found.name, found.status) == ("largest item on one rank", "warn")
    assert "32,768 tokens on each of 4 ranks, one item may put 114,688" in (found.detail)
    assert found.taken == Taken("a largest item on one rank", round(14 * GIB * 2.5))
    assert only(DATA).status == "pass"
    assert only(DATA, REHEARSED, budget=images, video=0).status == "pass"


def test_each_check_has_a_code_and_a_name_of_its_own() -> None:
    assert len(CHECKS) == len({check.pattern for check in CHECKS.values()})
    assert all(re.fullmatch(r"MM\d{3}", code) for code in CHECKS)
    product = Path(catalogue.__file__).parent.parent.rglob("*.py")
    used = {name for file in product for name in re.findall(r"\bids\.([A-Z]\w+)", file.read_text())}
    assert {name for name in used if not hasattr(catalogue, name)} == set()


def test_an_unknown_code_names_one_that_is_near() -> None:
    assert check_of_code("mm031").name == "… size hint"
    with pytest.raises(UsageError, match="no check has the code MM0311") as raised:
        check_of_code("MM0311")
    assert raised.value.hint == "mmcalib list checks MM031"
