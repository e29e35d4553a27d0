"""Clips, whose model has no option that shrinks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcalib.admission.calibration import Calibration
from tests.e2e.command import mmcalib
from tests.e2e.media import requests, sound

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.long
def test_clips_of_any_rate_are_calibrated_and_their_peak_is_measured(
    tmp_path: Path, engine_cache: Path
) -> None:
    media = tmp_path / "media"
    sound(media / "telephone.wav", 12.0, 8_000)
    sound(media / "music.wav", 3.5, 44_100)
    asked = requests(
        tmp_path / "requests.jsonl",
        [("audio", "media/telephone.wav"), ("audio", "media/music.wav")],
        [("audio", "media/music.wav")],
    )
    words = ("run", "--model", "Qwen/Qwen2-Audio-7B-Instruct", "--requests", asked)
    # Time enough for the profile, also on a busy machine.
    budget = ("--startup-budget", "400")
    done = mmcalib(engine_cache, *words, *budget, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    calibration = Calibration.load(tmp_path / "out/calibration.json")
    checks = {check.name: check for check in calibration.checks}
    # 25 tokens a second; a shorter clip than the model's 30 s still reserves for 30 s.
    assert calibration.corpus.modalities["audio"].tokens["max"] == 300
    assert calibration.engine_config["limit_mm_per_prompt"] == {"audio": 2}
    assert calibration.budget.calibrated.max_tokens_per_item == {"audio": 750}
    assert calibration.engine_config["max_num_batched_tokens"] % 750 == 0
    assert "an item may take 750" in checks["audio size hint"].detail
    # The processor pads each clip to 30 s, and vLLM bounds a step by tokens.
    assert checks["audio input memory"].status == "warn"
    assert "such as " in checks["audio input memory"].detail
    assert checks["request replay"].status == "pass"
    assert calibration.memory.default.activation_peak_bytes is None
    assert calibration.memory.calibrated.activation_peak_bytes is not None
    assert calibration.memory.calibrated.labels["activation_peak_bytes"] == "measured"


def test_clips_of_an_encoder_decoder_are_no_part_of_its_context(
    tmp_path: Path, engine_cache: Path
) -> None:
    """Whisper's 448 tokens are the transcript's, not the clip's 1,500. It has no chat template."""
    sound(tmp_path / "media/telephone.wav", 12.0, 8_000)
    words = ("run", "--model", "openai/whisper-large-v3", "--data", tmp_path / "media")
    done = mmcalib(engine_cache, *words, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    calibration = Calibration.load(tmp_path / "out/calibration.json")
    assert calibration.engine_config["max_model_len"] == 448
    checks = {check.name: check.status for check in calibration.checks}
    assert "prompt length" not in checks
    assert (checks["engine start"], checks["request replay"]) == ("pass", "skip")
    # Keys and values of 1,280 numbers of two bytes, of 32 layers' own and cross attention.
    assert calibration.memory.calibrated.kv_bytes_per_token == 2 * 1280 * 2 * 32 * 2
