"""Predicted against measured on a GPU: which figures are compared, and when it is said."""

from __future__ import annotations

from typing import Any

import pytest

from mmcalib.domain.memory import WorkerMemory
from mmcalib.engine.messages import EngineStarted
from mmcalib.memory.checks import components, memory_checks
from mmcalib.memory.rehearse import Predicted
from mmcalib.models import gpus
from mmcalib.proof.prove import measured_memory
from mmcalib.proof.start import Started, _gpu_check
from tests.workflows.rehearsals import GIB, rehearsed

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
    return Started(figures, (36, 32), (36, 32))


def test_every_part_has_a_row_and_none_is_off() -> None:
    found = components(FOUND, started(gpu()).figures)
    assert {one.name: one.off for one in found} == dict.fromkeys(
        (
            *("weights", "KV bytes per token", "activation peak", "encoder peak"),
            *("language model peak", "sampler peak", "beside the weights", "CUDA graphs"),
            *("KV pool", "KV pool, tokens"),
        ),
        0.0,
    )


def test_what_vllm_keeps_no_figure_of_is_left_out() -> None:
    bare = WorkerMemory("V1", weights_bytes=FOUND.weights_bytes)
    names = [one.name for one in components(FOUND, started(bare).figures)]
    assert names == ["weights", "KV bytes per token"]


def test_the_pool_of_another_gpu_is_not_compared() -> None:
    larger = components(FOUND, started(gpu(total_bytes=80 * GIB)).figures)
    assert "KV pool" not in {one.name for one in larger}


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "pass", "KV pool 10.50 GiB against 10.50 GiB; KV pool, tokens 305,832 against"),
        ({"kv_cache_bytes": int(10.3 * GIB)}, "warn", "KV pool over-promised by 1.9%"),
        ({"kv_cache_bytes": int(10.7 * GIB)}, "pass", "KV pool 10.50 GiB against 10.70 GiB"),
        ({"kv_cache_bytes": 11 * GIB}, "warn", "KV pool off by -4.5%"),
        ({"phases": {"encoder": 3 * GIB}}, "warn", "encoder peak off by -33%"),
    ],
)
def test_a_run_says_what_was_predicted_beside_what_was_measured(
    changes: dict[str, object], status: str, said: str, tmp_path: object
) -> None:
    predicted = Predicted(gpus.find("L4"), None, rehearsed(budget=None))
    checks = {c.name: c for c in memory_checks(predicted, started(gpu(**changes)), str(tmp_path))}
    found = checks["predicted against measured"]
    assert (found.status, said in found.detail) == (status, True), found.detail


def test_the_report_has_the_gpu_s_own_column() -> None:
    found = measured_memory(started(gpu(non_torch_bytes=GIB // 8, max_concurrency=2.345)), own=True)
    assert (found.label, found.kv_cache_bytes) == ("measured", FOUND.kv_cache_bytes)
    assert (found.buffers_bytes, found.non_torch_bytes) == (GIB // 4, GIB // 8)
    assert (found.encoder_peak_bytes, found.max_concurrency) == (2 * GIB, 2.35)


def test_an_encoder_that_vllm_does_not_profile_is_warned_of() -> None:
    blind = _gpu_check(gpu(phases={"language model": GIB}))
    assert (blind.status, "nothing is reserved for it" in blind.detail) == ("warn", True)
    assert _gpu_check(gpu()).status == "pass"
    assert _gpu_check(WorkerMemory("V1")).status == "skip"
