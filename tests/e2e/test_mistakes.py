"""Mistakes that only vLLM can tell, and interruptions: one clear line, nothing lost, no orphans."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.command import QWEN, mmcalib, start
from tests.e2e.media import photo, requests
from tests.engine.conftest import folder_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def media(tmp_path: Path) -> Path:
    return photo(tmp_path / "media/a.jpg", 320, 240).parent


def test_a_text_only_model(media: Path, tmp_path: Path, engine_cache: Path) -> None:
    folder = folder_of(QWEN, tmp_path)
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151_936}
    (folder / "config.json").write_text(json.dumps(config))
    words = ("run", "--model", folder, "--data", media, "--out", tmp_path / "out")
    done = mmcalib(engine_cache, *words, code=1)
    assert f"error: {folder} takes no images, video or audio" in done.stderr
    assert "  try: mmcalib list models" in done.stderr
    assert "Traceback" not in done.stderr


def test_media_that_the_model_does_not_take(media, tmp_path: Path, engine_cache: Path) -> None:
    words = ("--model", "Qwen/Qwen2-Audio-7B-Instruct", "--data", media, "--out", tmp_path / "out")
    done = mmcalib(engine_cache, "run", *words, code=1)
    said = "the corpus holds only image items (the model does not take them); the model takes audio"
    assert said in done.stderr


def test_a_request_longer_than_the_context_is_a_no(media, tmp_path, engine_cache: Path) -> None:
    photo(media / "large.jpg", 1600, 1200)
    asked = requests(media / "requests.jsonl", [("image", "large.jpg")] * 3)
    done = mmcalib(
        engine_cache,
        *("run", "--model", QWEN, "--requests", asked),
        *("--max-model-len", "4096", "--min-image-pixels", "1000000"),
        *("--validate", "budget", "--out", tmp_path / "out"),
        code=3,
    )
    assert "longer than the context" in done.stderr
    assert "--max-model-len" in done.stderr
    assert not (tmp_path / "out/engine.yaml").exists()
    assert (tmp_path / "out/calibration.json").exists()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_results_and_no_process(media, tmp_path, engine_cache, sign) -> None:
    psutil = pytest.importorskip("psutil", reason="comes with vLLM")
    (media / "broken.png").write_bytes(b"")
    out = tmp_path / "out"
    process = start(engine_cache, "run", "--model", QWEN, "--data", media, "--out", out)
    calibration = out / "calibration.json"
    deadline = time.monotonic() + 900
    while not calibration.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1.0)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(sign)
    process.communicate(timeout=30)
    assert process.returncode == 128 + sign
    partial = json.loads(calibration.read_text())
    assert partial["verdict"] == "fail"
    assert partial["checks"][-1]["name"] == "run completion"
    assert "broken.png" in (out / "skipped.jsonl").read_text()
    assert not (out / "engine.yaml").exists()
    assert not [child for child in children if child.is_running()]


def test_a_context_beyond_the_model_s_is_one_line(media, tmp_path, engine_cache: Path) -> None:
    """vLLM's own words about it, 600 characters, came through."""
    words = ("run", "--model", QWEN, "--data", media, "--out", tmp_path / "out")
    done = mmcalib(engine_cache, *words, "--max-model-len", "99999999999", code=2)
    assert done.stderr.splitlines()[-2:] == [
        f"error: --max-model-len 99999999999: {QWEN} has a context of 128,000 tokens",
        "  try: --max-model-len 128000, or leave it out",
    ]
