"""The encoder's peak by formula, from configs alone; the rehearsal's own tests compare the two."""

from __future__ import annotations

from typing import Any

import pytest

from mmcalib.memory.figures import Encoder, encoder_of
from mmcalib.models.catalogue import bundled_models, find_model


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
