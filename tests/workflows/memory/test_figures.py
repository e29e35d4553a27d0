"""What is made of a rehearsal's figures: labels, checks, and the comparison with a start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mmcalib.engine.messages import EngineStarted
from mmcalib.errors import VllmRefused
from mmcalib.memory.checks import memory_checks
from mmcalib.memory.figures import by_formula, disagreement, memory
from mmcalib.memory.rehearse import Predicted
from mmcalib.models import gpus
from mmcalib.models.catalogue import find
from mmcalib.models.checkpoint import materialise
from mmcalib.proof.start import Started
from tests.workflows.rehearsals import BUDGET, GIB, rehearsed

L4 = gpus.find("L4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    geometry = find("Qwen/Qwen2.5-VL-3B-Instruct")
    assert geometry is not None
    return str(materialise(geometry, tmp_path_factory.mktemp("models") / "3b"))


def total(parts: Sequence[int | None]) -> int:
    """All must be known."""
    known = [part for part in parts if part is not None]
    assert len(known) == len(parts)
    return sum(known)


def started(**changes: Any) -> Started:
    figures = EngineStarted(
        device="cpu",
        start_s=10.0,
        weights_bytes=GIB,
        weights_full_bytes=7 * GIB,
        kv_bytes_per_token=1024,
        kv_full_bytes_per_token=36_864,
        encoder_seconds_per_token=None,
        profile_estimate_s=None,
        profile_s=None,
        activation_peak_bytes=3 * GIB,
        budget_tokens=16_384,
        profiled_modality="image",
        profiled_items=1,
        **changes,
    )
    return Started(figures, (2, 2), (36, 32))


def test_the_entry_adds_up_and_labels_what_is_not_rehearsed() -> None:
    found = memory(rehearsed(), L4)
    parts = (
        found.weights_bytes,
        found.buffers_bytes,
        found.activation_peak_bytes,
        found.non_torch_bytes,
        found.cudagraph_bytes,
    )
    assert found.requested_bytes is not None
    assert found.kv_cache_bytes == found.requested_bytes - total(parts)
    assert found.label == "rehearsed"
    assert found.labels["cudagraph_bytes"] == found.labels["non_torch_bytes"] == "assumed"
    assert (found.gpu, found.encoder_peak_bytes) == ("L4", 2 * GIB)


def test_a_default_that_would_not_start_is_said_beside_the_gain(model: str) -> None:
    short = rehearsed(kv_cache_bytes=-GIB, kv_cache_tokens=None, max_concurrency=None, problem="x")
    checks = memory_checks(Predicted(L4, short, rehearsed()), None, model)
    assert [check.status for check in checks] == ["pass"]
    assert "305,832 tokens; the default would not start (1.00 GiB short)" in checks[0].detail


def test_a_calibrated_configuration_that_would_not_start_fails(model: str) -> None:
    short = rehearsed(kv_cache_bytes=-GIB, kv_cache_tokens=None, problem="No memory for KV cache")
    (check,) = memory_checks(Predicted(L4, None, short), None, model)
    assert check.status == "fail"
    assert "No memory for KV cache" in check.detail
    assert "--max-model-len" in check.remedy


def test_a_model_that_cannot_be_rehearsed_is_skipped_with_the_reason(model: str) -> None:
    (check,) = memory_checks(
        Predicted(L4, None, None, failure=VllmRefused("_C::foo has no fake implementation")),
        None,
        model,
    )
    assert (check.status, "_C::foo" in check.detail) == ("skip", True)


def test_an_encoder_without_a_profile_is_a_finding(model: str) -> None:
    blind = rehearsed(phases=rehearsed().phases[1:])
    checks = {c.name: c for c in memory_checks(Predicted(L4, None, blind), None, model)}
    assert checks["encoder reserved"].status == "warn"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "pass"),
        ({"weights_bytes": 8 * GIB}, "warn"),
        ({"kv_bytes_per_token": 36_865}, "warn"),
    ],
)
def test_what_was_predicted_against_what_was_measured(
    model: str, changes: dict[str, Any], status: str
) -> None:
    predicted = Predicted(L4, None, rehearsed(**changes))
    checks = {c.name: c for c in memory_checks(predicted, started(), model)}
    found = checks["predicted against measured"]
    assert found.status == status
    assert "activation peak 2.00 GiB against 3.00 GiB (cpu kernels)" in found.detail


def test_formula_and_rehearsal_agree_or_it_is_said(model: str) -> None:
    assert disagreement(rehearsed(), model) == ""
    small = rehearsed(phases=(rehearsed().phases[0].__class__("encoder", GIB // 4, 0, "", ()),))
    assert "dummy image costs less than the 16,384 tokens" in disagreement(small, model)
    large = rehearsed(phases=(rehearsed().phases[0].__class__("encoder", 4 * GIB, 0, "", ()),))
    assert "rehearsed 4.00 GiB" in disagreement(large, model)
    assert Path(model).is_dir()


def test_what_cannot_be_rehearsed_is_estimated_by_formula_and_says_so(model: str) -> None:
    found = by_formula(L4, started(), BUDGET, {}, model, "no fake implementation")
    assert (found.label, found.note) == (
        "computed",
        "by formula, not rehearsed: no fake implementation",
    )
    assert found.weights_bytes == 7 * GIB
    assert found.kv_cache_bytes is not None
    assert found.activation_peak_bytes is not None
    assert found.kv_cache_bytes < L4.total_bytes - 7 * GIB - found.activation_peak_bytes
    assert found.kv_cache_tokens == found.kv_cache_bytes // 36_864
    unknown = by_formula(L4, None, BUDGET, {}, model, "no start either")
    assert (unknown.kv_cache_bytes, unknown.note) == (None, "not rehearsed: no start either")
