"""All commands on models that mmcalib does not bundle: they work, or name what to type."""

import json
from pathlib import Path

import pytest

from tests.e2e.command import calibrated, mmcalib
from tests.e2e.media import clip, photo, sound
from tests.e2e.unbundled import write

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

# KV bytes per token: layers × keys and values × their heads × their width × 2 bytes.
KV_BYTES = {
    "qwen2_vl": 20 * 2 * 2 * 128 * 2,
    "qwen2_5_vl": 30 * 2 * 2 * 128 * 2,
    "qwen3_vl_moe": 24 * 2 * 4 * 128 * 2,
    "internvl": 24 * 2 * 2 * 64 * 2,
    "llava_next_video": 32 * 2 * 8 * 128 * 2,
    "gemma3": 20 * 2 * 4 * 256 * 2,
    "idefics3": 30 * 2 * 3 * 64 * 2,
    "mistral3": 26 * 2 * 8 * 128 * 2,
    # transformers' Qwen2Config: 32 layers and heads.
    "qwen2_audio": 32 * 2 * 32 * 128 * 2,
}
TRUSTED = ("--", "--trust-remote-code")


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    photo(folder / "image/a.jpg", 640, 480)
    clip(folder / "video/a.mp4", 320, 240, frames=40)
    sound(folder / "audio/a.wav", 29, 16_000)
    return folder


@pytest.mark.parametrize("name", KV_BYTES)
def test_every_command_works(name: str, media: Path, tmp_path: Path, engine_cache: Path) -> None:
    modality = {"llava_next_video": "video", "qwen2_audio": "audio"}.get(name, "image")
    folder, out, flags = write(name, tmp_path), tmp_path / "out", TRUSTED * (name == "internvl")
    data, gpu = media / modality, ("--gpu", "L4", "--quiet")
    words = ("--model", folder, "--data", data, "--validate", "budget", *gpu)
    made = calibrated(engine_cache, out, *words, "--max-model-len", "8192", *flags)
    assert made.model.source == "local"
    assert made.memory.calibrated.label == "rehearsed"
    assert made.memory.calibrated.kv_bytes_per_token == KV_BYTES[name]

    done = mmcalib(engine_cache, "rehearse", "--model", folder, *gpu, "--json", *flags)
    assert json.loads(done.stdout)["memory"]["kv_bytes_per_token"] == KV_BYTES[name]

    config = ("--config", out / "engine.yaml", "--data", data, "--validate", "budget")
    done = mmcalib(engine_cache, "validate", *config, *gpu, *flags)

    done = mmcalib(engine_cache, "check", "--calibration", out / "calibration.json", data)
    assert "1 of 1 fit" in done.stderr


@pytest.mark.parametrize("command", ["run", "rehearse"])
@pytest.mark.parametrize("name", ["internvl", "minicpm_v"])
def test_code_of_a_model_is_trusted_by_a_flag(name, command, media, tmp_path, engine_cache) -> None:
    data = ("--data", media / "image", "--out", tmp_path / "out") if command == "run" else ()
    folder = write(name, tmp_path)
    done = mmcalib(
        engine_cache, command, "--model", folder, *data, "--gpu", "L4", "--quiet", code=1
    )
    said = " ".join(done.stderr.split())
    assert "code of its own, which vLLM runs only if you trust it" in said
    assert "add -- --trust-remote-code" in said
