"""The whole job on real vLLM: from files on disk to a proven configuration."""

import json
import resource
from pathlib import Path

import pytest

from mmcalib import Calibration, calibrate
from tests.bfloat16 import NATIVE
from tests.builders import some
from tests.e2e.command import QWEN, Ran, calibrated, checks_of, mmcalib, run, start
from tests.e2e.media import clip, photo, requests, sound
from tests.processes import started_with, wait_until
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def images_only(tmp_path_factory: pytest.TempPathFactory, engine_cache: Path) -> Ran:
    """Photos, requests of up to three of them, and files that cannot be used."""
    folder = tmp_path_factory.mktemp("images")
    media = folder / "media"
    for number, (width, height) in enumerate([(640, 480), (1280, 720), (48, 64), (800, 200)]):
        photo(media / f"{number}.jpg", width, height, number)
    whole = (media / "1.jpg").read_bytes()
    (media / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (media / "words.png").write_text("not a picture")
    (media / "empty.webp").write_bytes(b"")
    photo(media / "sliver.png", 2, 900)
    asked = requests(
        media / "requests.jsonl",
        [("image", "0.jpg"), ("image", "1.jpg"), ("image", "2.jpg")],
        [("image", "3.jpg")],
        [("image", (media / "1.jpg").as_uri())],
        [("image", "truncated.jpg")],
        [("image", "missing.jpg")],
    )
    words = ("--model", QWEN, "--data", media, "--requests", asked, "--json")
    ran = run(engine_cache, folder / "out", *words)
    fits("calibration", ran.stdout)
    return ran


def test_the_verdict_is_pass_and_everything_is_written(images_only: Ran) -> None:
    assert images_only.calibration.verdict == "pass"
    names = {path.name for path in images_only.out.iterdir()}
    assert names == {"engine.yaml", "calibration.json", "report.html", "report.md", "skipped.jsonl"}
    assert json.loads(images_only.stdout) == images_only.document


def test_what_cannot_be_used_is_listed_with_its_reason(images_only: Ran) -> None:
    skipped = images_only.skipped
    assert {"truncated.jpg", "words.png", "empty.webp", "missing.jpg"} <= set(skipped)
    assert all(skipped.values())
    assert {"requests.jsonl:4", "requests.jsonl:5"} <= set(skipped)
    assert images_only.calibration.corpus.skipped == len(skipped)
    refused = checks_of(images_only.calibration)["image processing"]
    assert refused.status == "warn"
    assert "sliver.png" in refused.detail
    assert "aspect ratio" in refused.detail


def test_limits_are_what_the_corpus_needs(images_only: Ran) -> None:
    config = images_only.calibration.engine_config
    # A hint would change nothing here: under the cap vLLM profiles the same tokens without it.
    assert config["limit_mm_per_prompt"] == {"image": 3, "video": 0}
    size = config["mm_processor_kwargs"]["images_kwargs"]["size"]
    # 1280×720 becomes 46×26 patches of 28×28 pixels; nothing in the corpus needs more.
    assert size["longest_edge"] == 46 * 26 * 28 * 28
    chosen = [point for point in images_only.calibration.frontier if point.choice == "chosen"]
    assert [point.share_downscaled for point in chosen] == [0.0]


def test_the_budget_shrinks_from_a_video_s_to_the_corpus_largest_image(images_only: Ran) -> None:
    budget = images_only.calibration.budget
    assert budget.default.encoder_budget_tokens == 114_688
    assert budget.default.profiled_modality == "video"
    assert budget.calibrated.encoder_budget_tokens <= 16_384
    assert budget.calibrated.max_tokens_per_item == {"image": 46 * 26}
    assert budget.calibrated.adequacy == 1.0
    reserved = checks_of(images_only.calibration)["memory reserve"]
    assert reserved.status == "warn", "without a GPU only tokens are compared"


def test_the_engine_started_and_answered(images_only: Ran) -> None:
    startup = some(images_only.calibration.startup)
    assert startup.device == "cpu"
    assert startup.true_depth == (36, 32)
    assert startup.figures["encoder_budget_tokens"] == (
        images_only.calibration.budget.calibrated.encoder_budget_tokens
    )
    replay = some(startup.replay)
    assert replay.prompts >= 1
    assert (replay.rejected, replay.oom, replay.token_mismatches) == (0, 0, 0)
    assert 0 < replay.largest_encoder_step_tokens <= startup.figures["encoder_budget_tokens"]


def test_weights_scaled_to_true_depth_match_the_published_size(images_only: Ran) -> None:
    # 3.75 billion parameters of two bytes (model card); dummy weights at 2+2 layers, scaled.
    weights = images_only.calibration.memory.calibrated.weights_bytes
    assert weights == pytest.approx(7.51e9, rel=0.005)
    assert images_only.calibration.memory.calibrated.labels["weights_bytes"] == "computed"


@NATIVE
def test_the_peak_is_measured(images_only: Ran) -> None:
    found = images_only.calibration
    assert found.memory.calibrated.labels["activation_peak_bytes"] == "measured"
    startup = some(found.startup)
    assert (startup.figures["activation_peak_bytes"] or 0) > 10**8


@pytest.mark.long
def test_videos_are_kept_whole_and_replayed(tmp_path, engine_cache, monkeypatch) -> None:
    """A video, whose sampled frames decide, stands beside a larger image."""
    clip(tmp_path / "media/clip.mp4", 320, 240, frames=40)
    photo(tmp_path / "media/still.jpg", 400, 300)
    monkeypatch.setenv("MMCALIB_CACHE_DIR", str(engine_cache))
    calibration = calibrate(QWEN, tmp_path / "media")
    assert calibration.verdict == "pass", calibration.checks
    # 4 s at 2 frames a second are 8 frames in 4 temporal patches of 11×9 tokens.
    assert calibration.corpus.modalities["video"].tokens["max"] == 4 * 11 * 9
    assert calibration.engine_config["limit_mm_per_prompt"]["video"] != 0
    kwargs = calibration.engine_config["mm_processor_kwargs"]
    assert kwargs["videos_kwargs"]["size"]["longest_edge"] == 11 * 9 * 28 * 28
    assumed = [e for e in calibration.evidence if e.label == "assumed"]
    assert any("no requests given" in e.reason for e in assumed)
    assert some(some(calibration.startup).replay).prompts >= 2


def test_a_machine_without_memory_skips_the_start_and_writes_the_file(tmp_path: Path) -> None:
    """Two layers of 72B are 8 GiB of weights: the process that is to hold them may have 8."""
    photo(tmp_path / "media/a.jpg", 640, 480)
    cache, out = tmp_path / "cache", tmp_path / "out"
    words = ("--model", "Qwen/Qwen2.5-VL-72B-Instruct", "--data", tmp_path / "media", "--out", out)
    process = start(cache, "run", *words)
    wait_until(lambda: _engines(cache), 60)
    for pid in _engines(cache):
        resource.prlimit(pid, resource.RLIMIT_AS, (8 << 30, 8 << 30))
    _, said = process.communicate(timeout=1500)
    assert process.returncode == 0, said
    found = Calibration.load(out / "calibration.json")
    check = checks_of(found)["engine start"]
    assert (found.verdict, check.status) == ("pass", "skip")
    assert "this machine ran out of memory (DefaultCPUAllocator: can't allocate" in check.detail
    assert (out / "engine.yaml").exists()


def _engines(cache: Path) -> list[int]:
    """Processes that run vLLM for the command."""
    every = started_with(f"MMCALIB_CACHE_DIR={cache}")
    return [pid for pid in every if b"mmcalib.child" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_an_under_reserved_configuration_is_not_emitted(tmp_path: Path, engine_cache: Path) -> None:
    """4096 tokens per step with items of 1196: the profile takes three of them, 3588."""
    photo(tmp_path / "media/a.jpg", 1280, 720)
    words = ("run", "--model", QWEN, "--data", tmp_path / "media", "--validate", "budget")
    chosen = ("--max-num-batched-tokens", "2300", "--count", "image=8")
    done = mmcalib(engine_cache, *words, *chosen, "--out", tmp_path / "out", code=3)
    assert "under-reserved" in done.stderr
    assert not (tmp_path / "out/engine.yaml").exists()
    mmcalib(engine_cache, *words, *chosen, "--out", tmp_path / "out2", "--allow-under-reserve")
    assert (tmp_path / "out2/engine.yaml").exists()


def test_recordings_above_the_default_budget_have_their_price(tmp_path, engine_cache: Path) -> None:
    """A KV cache beside which 2 of 3 recordings are rejected is no better."""
    for seconds in (40, 300, 590):
        sound(tmp_path / f"media/clip-{seconds}s.wav", seconds, 16_000)
    words = ("--model", "Qwen/Qwen3-ASR-1.7B", "--gpu", "L4", "--validate", "budget")
    found = calibrated(engine_cache, tmp_path / "out", "--data", tmp_path / "media", *words)
    checks = checks_of(found)
    assert found.engine_config["max_num_batched_tokens"] == 7_670
    assert checks["items admitted"].status == "pass"
    compared = checks["comparison with vLLM's defaults"]
    assert compared.status == "pass"
    assert "reject 2 of 3 items" in compared.detail
    before, after = found.memory.default, found.memory.calibrated
    assert f"{before.kv_cache_tokens:,} → {after.kv_cache_tokens:,}" in compared.detail


@pytest.mark.long
def test_the_utilization_that_would_keep_all_detail_is_named(tmp_path, engine_cache: Path) -> None:
    for number, (width, height) in enumerate(((2366, 1402), (867, 6771), (2968, 1596))):
        photo(tmp_path / f"media/scan-{number}.png", width, height, number)
    words = ("--model", "zai-org/GLM-OCR", "--gpu-memory", "15.5GiB", "--capability", "12.0")
    data = ("--data", tmp_path / "media", "--validate", "budget")
    flags = ("--", "--max-model-len", "8000", "--gpu-memory-utilization", "0.25")
    found = calibrated(engine_cache, tmp_path / "out", *words, *data, *flags)
    checks = checks_of(found)
    assert found.engine_config["gpu_memory_utilization"] == 0.25
    assert checks["detail kept"].remedies[0].startswith("-- --gpu-memory-utilization 0.33 keeps")
    # A step of small pages is not reserved, and fits in the rest of the card.
    assert checks["memory reserve"].status == "warn"


@pytest.mark.long
def test_the_engine_starts_with_the_batch_of_the_server(tmp_path: Path, engine_cache: Path) -> None:
    """max_num_seqs bounds a profile of tiny items: 256 in `vllm.LLM`, 128 in the server."""
    for number in range(3):
        photo(tmp_path / "media" / f"{number}.png", 64, 64, number)
    words = ("--model", QWEN, "--data", tmp_path / "media", "--out", tmp_path / "out")
    mmcalib(engine_cache, "run", *words, "--validate", "startup")
