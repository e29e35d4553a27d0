"""A rehearsal's figures in documents and messages."""

from __future__ import annotations

from typing import Any

import pytest

from mmcalib.checks.engine import components, gpu_profile_check
from mmcalib.checks.memory import memory_checks
from mmcalib.domain.memory import EngineStarted, WorkerMemory
from mmcalib.errors import VllmRefused
from mmcalib.models import gpus
from mmcalib.models.cut import Depths
from mmcalib.prediction.rehearse import memory_figures
from mmcalib.proof.prove import Started, measured_memory
from tests.builders import left_of_request, some
from tests.workflows.rehearsals import GIB, rehearsed

L4 = gpus.find_gpu("L4")


def test_the_entry_adds_up_and_labels_what_is_not_rehearsed() -> None:
    found = memory_figures(rehearsed(), L4)
    parts = "weights", "buffers", "activation_peak", "non_torch", "cudagraph"
    assert found.kv_cache_bytes == left_of_request(found, *parts)
    assert found.label == "rehearsed"
    assert found.labels["cudagraph_bytes"] == found.labels["non_torch_bytes"] == "assumed"
    assert (found.gpu, found.phases["encoder"]) == ("L4", 2 * GIB)


def test_a_calibrated_configuration_that_would_not_start_fails() -> None:
    short = rehearsed(kv_cache_bytes=-GIB, kv_cache_tokens=None, problem="No memory for KV cache")
    (check,) = memory_checks("L4", None, short)
    assert check.status == "fail"
    assert "No memory for KV cache" in check.detail
    assert "--max-model-len" in check.remedy


FOUND = rehearsed()


def gpu(**changes: Any) -> WorkerMemory:
    """A start that kept every promise of the rehearsal."""
    figures: dict[str, Any] = {
        "total_bytes": FOUND.total_bytes,
        "requested_bytes": FOUND.requested_bytes,
        "weights_bytes": FOUND.weights_bytes,
        "activation_peak_bytes": FOUND.activation_peak_bytes,
        "phases": {"encoder": 2 * GIB, "language model": GIB // 2, "sampler": GIB // 4},
        "beside_bytes": FOUND.buffers_bytes + FOUND.non_torch_bytes,
        "cudagraph_bytes": FOUND.cudagraph_bytes,
        "kv_cache_bytes": FOUND.kv_cache_bytes,
        "kv_cache_tokens": FOUND.kv_cache_tokens,
    }
    return WorkerMemory("V1", **{**figures, **changes})


def started(found: WorkerMemory) -> Started:
    figures = EngineStarted(
        device="cuda",
        start_s=20.0,
        weights_bytes=FOUND.weights_bytes,
        weights_full_bytes=FOUND.weights_bytes,
        kv_bytes_per_token=FOUND.kv_bytes_per_token,
        kv_full_bytes_per_token=FOUND.kv_bytes_per_token,
        encoder_seconds_per_token=None,
        profile_estimate_s=None,
        profile_s=None,
        activation_peak_bytes=found.activation_peak_bytes,
        budget_tokens=16_384,
        profiled_modality="image",
        profiled_items=1,
        gpu=found,
    )
    return Started(figures, Depths(36, 32), Depths(36, 32))


def test_every_part_has_a_row_and_none_is_off() -> None:
    found = components(FOUND, started(gpu()).figures)
    parts = ["weights", "KV bytes per token", "activation peak", "encoder peak"]
    parts += ["language model peak", "sampler peak", "beside the weights", "CUDA graphs"]
    parts += ["KV pool", "KV pool, tokens"]
    assert {one.name: one.off for one in found} == dict.fromkeys(parts, 0.0)


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "pass", "KV pool 10.50 GiB, predicted 10.50 GiB; KV pool, tokens 305,832, predicted"),
        ({"kv_cache_bytes": int(10.3 * GIB)}, "warn", "KV pool predicted 1.9% too large"),
        ({"kv_cache_bytes": int(10.7 * GIB)}, "pass", "KV pool 10.70 GiB, predicted 10.50 GiB"),
        ({"kv_cache_bytes": 11 * GIB}, "warn", "KV pool off by -4.5%"),
        ({"phases": {"encoder": 3 * GIB}}, "warn", "encoder peak off by -33%"),
    ],
)
def test_a_run_says_what_was_predicted_beside_what_was_measured(changes, status: str, said: str):
    figures = started(gpu(**changes)).figures
    checks = {c.name: c for c in memory_checks("L4", None, rehearsed(budget=None), figures=figures)}
    found = checks["prediction accuracy"]
    assert (found.status, said in found.detail) == (status, True), found.detail


def test_the_report_has_the_gpu_s_own_column() -> None:
    found = measured_memory(started(gpu(non_torch_bytes=GIB // 8, max_concurrency=2.345)), own=True)
    assert (found.label, found.kv_cache_bytes) == ("measured", FOUND.kv_cache_bytes)
    assert (found.buffers_bytes, found.non_torch_bytes) == (GIB // 4, GIB // 8)
    assert (found.phases["encoder"], found.max_concurrency) == (2 * GIB, 2.35)


def test_an_encoder_that_vllm_does_not_profile_is_warned_of() -> None:
    blind = gpu_profile_check(gpu(phases={"language model": GIB}))
    assert (blind.status, "does not profile or reserve" in blind.detail) == ("warn", True)
    assert gpu_profile_check(gpu()).status == "pass"
    assert gpu_profile_check(WorkerMemory("V1")).status == "skip"


def test_a_default_that_would_not_start_is_said_beside_the_gain() -> None:
    short = rehearsed(kv_cache_bytes=-GIB, kv_cache_tokens=None, max_concurrency=None, problem="x")
    checks = list(memory_checks("L4", short, rehearsed()))
    assert [check.status for check in checks] == ["pass", "pass"]
    said = "305,832 tokens; vLLM does not start with its defaults (1.00 GiB short)"
    assert said in checks[0].detail


def test_memory_that_the_host_shares_leaves_a_range() -> None:
    """4.41 GiB at most and 2.75 at least were taken outside torch, in public logs of GB10s."""
    found = rehearsed(non_torch_bytes=3 * GIB, kv_cache_bytes=50 * GIB)
    memory = memory_figures(found, gpus.find_gpu("GB10"))
    least, most = (nbytes / GIB for nbytes in some(memory.kv_cache_range_bytes))
    assert (round(least, 2), round(most, 2)) == (48.59, 50.25)
    assert memory_figures(found, L4).kv_cache_range_bytes is None


def test_an_encoder_without_a_profile_is_a_finding() -> None:
    blind = rehearsed(phases=rehearsed().phases[1:])
    checks = {c.name: c for c in memory_checks("L4", None, blind)}
    assert checks["encoder memory reserve"].status == "warn"


def test_a_model_that_cannot_be_rehearsed_is_warned_of_with_the_reason() -> None:
    (check,) = memory_checks("L4", None, None, VllmRefused("_C::foo has no fake implementation"))
    assert (check.status, "_C::foo" in check.detail) == ("warn", True)


def test_the_pool_of_another_gpu_is_not_compared() -> None:
    larger = components(FOUND, started(gpu(total_bytes=80 * GIB)).figures)
    assert "KV pool" not in {one.name for one in larger}
