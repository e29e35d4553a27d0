"""What is made of a rehearsal's figures, and the encoder's peak by formula, from configs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.domain.memory import WorkerMemory
from mmcalib.engine.messages import EngineStarted
from mmcalib.errors import VllmRefused
from mmcalib.memory.checks import components, memory_checks
from mmcalib.memory.figures import Encoder, encoder_of, memory_by_formula, memory_figures
from mmcalib.memory.rehearse import Predicted
from mmcalib.models import gpus
from mmcalib.models.catalogue import bundled_models, find_model
from mmcalib.models.checkpoint import materialise
from mmcalib.models.cut import Depths
from mmcalib.proof.prove import measured_memory
from mmcalib.proof.start import Started, _gpu_check
from tests.workflows.rehearsals import BUDGET, GIB, rehearsed

L4 = gpus.find_gpu("L4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    geometry = find_model("Qwen/Qwen2.5-VL-3B-Instruct")
    assert geometry is not None
    return str(materialise(geometry, tmp_path_factory.mktemp("models") / "3b"))


def total(parts: Sequence[int | None]) -> int:
    """All must be known."""
    known = [part for part in parts if part is not None]
    assert len(known) == len(parts)
    return sum(known)


def test_the_entry_adds_up_and_labels_what_is_not_rehearsed() -> None:
    found = memory_figures(rehearsed(), L4)
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
    assert (found.gpu, found.phases["encoder"]) == ("L4", 2 * GIB)


def test_a_calibrated_configuration_that_would_not_start_fails() -> None:
    short = rehearsed(kv_cache_bytes=-GIB, kv_cache_tokens=None, problem="No memory for KV cache")
    (check,) = memory_checks(Predicted(L4, None, short), None)
    assert check.status == "fail"
    assert "No memory for KV cache" in check.detail
    assert "--max-model-len" in check.remedy


def test_what_cannot_be_rehearsed_is_estimated_by_formula_and_says_so(model: str) -> None:
    small = replace(
        started(gpu()).figures, device="cpu", weights_bytes=GIB, kv_bytes_per_token=1024, gpu=None
    )
    found = memory_by_formula(
        L4,
        Started(small, Depths(2, 2), Depths(36, 32)),
        BUDGET,
        {},
        model,
        "no fake implementation",
    )
    assert (found.label, found.note) == (
        "computed",
        "by formula, not rehearsed: no fake implementation",
    )
    assert found.weights_bytes == 7 * GIB
    assert found.kv_cache_bytes is not None
    assert found.activation_peak_bytes is not None
    assert found.kv_cache_bytes < L4.total_bytes - 7 * GIB - found.activation_peak_bytes
    assert found.kv_cache_tokens == found.kv_cache_bytes // 36_864
    unknown = memory_by_formula(L4, None, BUDGET, {}, model, "no start either")
    assert (unknown.kv_cache_bytes, unknown.note) == (None, "not rehearsed: no start either")


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
    assert {one.name: one.off for one in found} == dict.fromkeys(
        (
            *("weights", "KV bytes per token", "activation peak", "encoder peak"),
            *("language model peak", "sampler peak", "beside the weights", "CUDA graphs"),
            *("KV pool", "KV pool, tokens"),
        ),
        0.0,
    )


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "pass", "KV pool 10.50 GiB against 10.50 GiB; KV pool, tokens 305,832 against"),
        ({"kv_cache_bytes": int(10.3 * GIB)}, "warn", "KV pool predicted 1.9% too large"),
        ({"kv_cache_bytes": int(10.7 * GIB)}, "pass", "KV pool 10.50 GiB against 10.70 GiB"),
        ({"kv_cache_bytes": 11 * GIB}, "warn", "KV pool off by -4.5%"),
        ({"phases": {"encoder": 3 * GIB}}, "warn", "encoder peak off by -33%"),
    ],
)
def test_a_run_says_what_was_predicted_beside_what_was_measured(
    changes: dict[str, object], status: str, said: str
) -> None:
    predicted = Predicted(gpus.find_gpu("L4"), None, rehearsed(budget=None))
    checks = {c.name: c for c in memory_checks(predicted, started(gpu(**changes)))}
    found = checks["prediction accuracy"]
    assert (found.status, said in found.detail) == (status, True), found.detail


def test_the_report_has_the_gpu_s_own_column() -> None:
    found = measured_memory(started(gpu(non_torch_bytes=GIB // 8, max_concurrency=2.345)), own=True)
    assert (found.label, found.kv_cache_bytes) == ("measured", FOUND.kv_cache_bytes)
    assert (found.buffers_bytes, found.non_torch_bytes) == (GIB // 4, GIB // 8)
    assert (found.phases["encoder"], found.max_concurrency) == (2 * GIB, 2.35)


def test_an_encoder_that_vllm_does_not_profile_is_warned_of() -> None:
    blind = _gpu_check(gpu(phases={"language model": GIB}))
    assert (blind.status, "does not profile or reserve" in blind.detail) == ("warn", True)
    assert _gpu_check(gpu()).status == "pass"
    assert _gpu_check(WorkerMemory("V1")).status == "skip"


def test_a_default_that_would_not_start_is_said_beside_the_gain() -> None:
    short = rehearsed(kv_cache_bytes=-GIB, kv_cache_tokens=None, max_concurrency=None, problem="x")
    checks = memory_checks(Predicted(L4, short, rehearsed()), None)
    assert [check.status for check in checks] == ["pass", "pass"]
    assert (
        "305,832 tokens; vLLM does not start with its defaults (1.00 GiB short)" in checks[0].detail
    )


def test_memory_that_the_host_shares_leaves_a_range() -> None:
    """4.41 GiB at most and 2.75 at least were taken outside torch, in public logs of GB10s."""
    found = rehearsed(non_torch_bytes=3 * GIB, kv_cache_bytes=50 * GIB)
    memory = memory_figures(found, gpus.find_gpu("GB10"))
    assert memory.kv_cache_range_bytes is not None
    least, most = (nbytes / GIB for nbytes in memory.kv_cache_range_bytes)
    assert (round(least, 2), round(most, 2)) == (48.59, 50.25)
    assert memory_figures(found, L4).kv_cache_range_bytes is None


def test_an_encoder_without_a_profile_is_a_finding() -> None:
    blind = rehearsed(phases=rehearsed().phases[1:])
    checks = {c.name: c for c in memory_checks(Predicted(L4, None, blind), None)}
    assert checks["encoder memory reserve"].status == "warn"


def test_a_model_that_cannot_be_rehearsed_is_skipped_with_the_reason() -> None:
    (check,) = memory_checks(
        Predicted(L4, None, None, failure=VllmRefused("_C::foo has no fake implementation")),
        None,
    )
    assert (check.status, "_C::foo" in check.detail) == ("skip", True)


def test_the_pool_of_another_gpu_is_not_compared() -> None:
    larger = components(FOUND, started(gpu(total_bytes=80 * GIB)).figures)
    assert "KV pool" not in {one.name for one in larger}


def config(model: str) -> dict[str, Any]:
    geometry = find_model(model)
    assert geometry is not None
    return geometry.values("config")


def test_the_largest_video_of_qwen25_vl() -> None:
    encoder = encoder_of(config("Qwen/Qwen2.5-VL-3B-Instruct"), "video")
    assert encoder is not None
    # 4 patches a token: gate, up and product of 3,420, four streams of 1,280; 1,176 pixel bytes.
    assert encoder.peak_bytes(1, 114_688) == 458_752 * (2 * (3 * 3420 + 4 * 1280) + 1176)


@pytest.mark.parametrize(
    ("model", "merged"),
    [("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 4), ("mistral-community/pixtral-12b", 1)],
)
def test_pixtral_merges_in_the_projector_or_not_at_all(model: str, merged: int) -> None:
    whole = config(model)
    encoder = encoder_of(whole, "image")
    assert encoder is not None
    pixels = 3 * whole["vision_config"]["patch_size"] ** 2
    assert encoder.peak_bytes(2, 100) == 200 * merged * 2 * (
        max(3 * 4096 + 4 * 1024, 12 * 1024) + pixels
    )
    assert encoder_of(whole, "video") is None


def test_gemma4_pools_nine_patches_into_a_token() -> None:
    encoder = encoder_of(config("google/gemma-4-31B-it"), "image")
    assert encoder is not None
    assert encoder == encoder_of(config("google/gemma-4-31B-it"), "video")
    assert encoder.peak_bytes(1, 280) == 2520 * 2 * (3 * 4304 + 4 * 1152 + 768)


def test_qwen2_vl_calls_its_width_otherwise() -> None:
    encoder = encoder_of(config("Qwen/Qwen2-VL-2B-Instruct"), "image")
    assert encoder is not None
    assert (encoder.hidden, encoder.intermediate, encoder.gated) == (1280, 5120, False)


def test_glm_4v_widens_to_its_output_and_not_to_what_its_merger_has() -> None:
    encoder = encoder_of(config("zai-org/GLM-4.6V-Flash"), "video")
    assert encoder is not None
    assert (encoder.hidden, encoder.intermediate, encoder.gated) == (1536, 4096, True)
    # Rehearsed on an H100 with 0.32: 267,696 patches at 10.36 GiB.
    assert encoder.peak_bytes(1, 267_696 // 4) == pytest.approx(10.36 * 1024**3, rel=0.1)


def test_taps_keep_merged_tokens_for_the_output() -> None:
    encoder = encoder_of(config("Qwen/Qwen3-VL-8B-Instruct"), "image")
    assert encoder is not None
    # Rotated: 12 streams of 1,152. Three taps of 4,096 for each 4 patches, of 1,536 pixel bytes.
    peak = encoder.peak_bytes(1, 16_384)
    assert peak == 65_536 * (2 * (12 * 1152 + 3 * 4096 // 4) + 1536)
    # Rehearsed on an H100: 2,408,579,584 bytes.
    assert peak == pytest.approx(2_408_579_584, rel=0.05)


@pytest.mark.parametrize(
    ("model", "tokens", "positions"),
    [
        ("google/gemma-3-4b-it", 256, 64 * 64),
        ("llava-hf/llava-v1.6-mistral-7b-hf", 2928, 5 * 24 * 24),
        ("OpenGVLab/InternVL2-2B", 3328, 13 * 32 * 32),
    ],
)
def test_tiles_of_one_image(model: str, tokens: int, positions: int) -> None:
    encoder = encoder_of(config(model), "image")
    assert encoder is not None
    per_position = 2 * (2 * encoder.intermediate + 4 * encoder.hidden + encoder.inputs)
    assert encoder.peak_bytes(3, tokens) == 3 * positions * per_position


def test_a_clip_is_as_wide_however_short() -> None:
    encoder = encoder_of(config("openai/whisper-large-v3"), "audio")
    assert encoder is not None
    assert encoder.peak_bytes(1, 10) == encoder.peak_bytes(1, 1500) > 0


def test_more_items_or_tokens_never_take_less() -> None:
    encoder = Encoder(hidden=8, intermediate=32, gated=True, merge=4)
    assert encoder.peak_bytes(2, 10) == encoder.peak_bytes(1, 20) > encoder.peak_bytes(1, 10)


def test_every_bundled_family_is_known() -> None:
    unknown = {
        geometry.architecture
        for geometry in bundled_models()
        if not any(encoder_of(geometry.values("config"), m) for m in geometry.modalities)
    }
    assert unknown == {
        # Two encoders, one behind the other.
        *("DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "UnlimitedOCRForCausalLM"),
        # None: patches go to the language model as they are.
        "Gemma4UnifiedForConditionalGeneration",
        # Merges patches in steps of its own.
        "MiniCPMV4_6ForConditionalGeneration",
        # Of timm's, and one that is no transformer alone.
        "Gemma3nForConditionalGeneration",
        # Patches in any number, which no size of an image bounds.
        "Lfm2VlForConditionalGeneration",
        # In a section of its own.
        "Ovis",
    }


def test_an_unknown_family_has_no_formula() -> None:
    assert encoder_of({"vision_config": {"width": 3}}, "image") is None
    assert encoder_of({}, "image") is None
