"""Whole runs in seconds: clips, whose model has no option that shrinks them, a setting that does
nothing (R8), and outputs without the names of folders.
"""

import json
from pathlib import Path

import pytest
import yaml

from mmcalib.admission.calibration import Calibration
from mmcalib.report import CONFIGURATION_NAMES, REPORT_NAMES
from tests.e2e.command import QWEN, calibrated, checks_of, mmcalib
from tests.e2e.media import clip, photo, requests, sound
from tests.engine.checkpoints import speaking
from tests.engine.conftest import folder_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.long
def test_clips_of_any_rate_are_calibrated_and_measured(tmp_path: Path, engine_cache: Path) -> None:
    media = tmp_path / "media"
    sound(media / "telephone.wav", 12.0, 8_000)
    sound(media / "music.wav", 3.5, 44_100)
    asked = requests(
        tmp_path / "requests.jsonl",
        [("audio", "media/telephone.wav"), ("audio", "media/music.wav")],
        [("audio", "media/music.wav")],
    )
    # Time enough for the profile, also on a busy machine.
    words = ("--model", "Qwen/Qwen2-Audio-7B-Instruct", "--startup-budget", "400")
    calibration = calibrated(engine_cache, tmp_path / "out", *words, "--requests", asked)
    checks = checks_of(calibration)
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


def test_clips_of_an_encoder_decoder_are_no_part_of_its_context(tmp_path, engine_cache) -> None:
    """Whisper's 448 tokens are the transcript's, not the clip's 1,500. It has no chat template."""
    sound(tmp_path / "media/telephone.wav", 12.0, 8_000)
    words = ("--model", "openai/whisper-large-v3", "--data", tmp_path / "media")
    calibration = calibrated(engine_cache, tmp_path / "out", *words)
    assert calibration.engine_config["max_model_len"] == 448
    checks = checks_of(calibration)
    assert "prompt length" not in checks
    assert (checks["engine start"].status, checks["request replay"].status) == ("pass", "skip")
    # Keys and values of 1,280 numbers of two bytes, of 32 layers' own and cross attention.
    assert calibration.memory.calibrated.kv_bytes_per_token == 2 * 1280 * 2 * 32 * 2


SECRET = "UNDISCLOSED"


def test_no_output_of_a_redacted_run_names_the_folder(tmp_path: Path, engine_cache: Path) -> None:
    media, out = tmp_path / SECRET / f"of {SECRET}", tmp_path / "out"
    for number, width in enumerate((640, 9000)):
        photo(media / f"{SECRET}-{number}.jpg", width, 1600, number)
    photo(media / f"{SECRET}-thin.png", 3, 700)
    (media / f"{SECRET}-broken.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    images = [("image", f"{SECRET}-{number}.jpg") for number in (0, 1)]
    asked = requests(media / f"{SECRET}.jsonl", images, images * 9, [("image", f"{SECRET}.gif")])
    words = ("run", "--model", QWEN, "--data", media, "--requests", asked, "--out", out)
    mmcalib(engine_cache, *words, "--validate", "budget", "--redact-paths", "--quiet", code=None)
    written = {name: (out / name).read_text("utf-8") for name in ("report.html", "report.md")}
    again = ("report", out, "--redact-paths", "--no-thumbnails", "--force", "--quiet")
    for name in REPORT_NAMES:
        written[name] = mmcalib(
            engine_cache, *again, "--format", name, "--out", "-", code=None
        ).stdout
    for name in CONFIGURATION_NAMES:
        written[f"--emit {name}"] = mmcalib(engine_cache, *again, "--emit", name, code=None).stdout
    assert [name for name, text in written.items() if not text] == []
    assert [name for name, text in written.items() if SECRET in text] == []
    # Checks name files, or this could not fail; each says which.
    checks = Calibration.load(out / "calibration.json").checks
    naming = [check for check in checks if SECRET in check.detail]
    assert len(naming) >= 3
    assert [check.name for check in naming if not check.names] == []


def test_frames_that_the_loader_ignores_are_not_written(tmp_path: Path, engine_cache: Path) -> None:
    """Qwen2.5-VL's video loader goes by fps and has no ear for `num_frames`."""
    photo(tmp_path / "media/a.jpg", 640, 480)
    clip(tmp_path / "media/b.mp4", 320, 240, frames=40)
    asked = json.dumps({"video": {"num_frames": 8, "fps": 1}})
    words = ("--model", QWEN, "--data", tmp_path / "media", "--validate", "budget")
    out = tmp_path / "out"
    calibration = calibrated(engine_cache, out, *words, "--media-io-kwargs", asked)
    written = yaml.safe_load((out / "engine.yaml").read_text())
    assert written["media-io-kwargs"] == {"video": {"fps": 1}}
    check = checks_of(calibration)["effect of each setting"]
    assert check.status == "warn"
    assert "media_io_kwargs.video.num_frames" in check.detail
    effects = {e.setting: e.effect for e in calibration.evidence}
    assert all(effects.values()), effects
    assert effects["media_io_kwargs.video.fps"].startswith("without it: video of")


def test_a_saved_corpus_gives_the_same_documents_without_media(tmp_path, engine_cache) -> None:
    media = tmp_path / "media"
    for number in range(4):
        photo(media / f"{number}.jpg", 400 + 90 * number, 300, number)
    photo(media / "again.jpg", 490, 300, 1)
    clip(media / "clip.mp4", 160, 120, 20)
    pairs = [("image", "media/1.jpg"), ("image", "media/again.jpg")]
    asked = requests(tmp_path / "requests.jsonl", pairs, [("video", "media/clip.mp4")], pairs[:1])
    long = {"messages": [{"role": "user", "content": "the model of the server " * 400}]}
    asked.write_text(asked.read_text() + json.dumps(long))
    corpus = ("--data", media, "--requests", asked)
    saved = tmp_path / "elsewhere" / "corpus.jsonl"
    folder = speaking(folder_of(QWEN, engine_cache), tmp_path / "model")
    mmcalib(engine_cache, "scan", *corpus, "--save", saved, "--model", folder)
    *_, text = map(json.loads, saved.read_text().splitlines()[:4])
    assert text["text_tokens"] < 24 * 400 / 3
    model = ("--model", folder, "--max-model-len", "fit", "--validate", "none", "--quiet")
    here = calibrated(engine_cache, tmp_path / "here", *model, *corpus)
    there = calibrated(engine_cache, tmp_path / "there", *model, "--requests", saved)
    assert there.engine_config == here.engine_config
    assert (there.limits, there.budget) == (here.limits, here.budget)
    points = [[p.model_copy(update={"process_s": 0}) for p in c.frontier] for c in (here, there)]
    assert points[0] == points[1]
    # A file and its copy are one item.
    assert there.cache == here.cache
    assert [part.given for part in there.corpus.modalities.values()] == [6, 1]
