"""Whole runs in minutes: small and several GPUs, two models, a limit of the server exceeded."""

import json
import shlex
from pathlib import Path

import pytest

import mmcalib as library
from mmcalib.admission.calibration import Calibration
from tests.e2e.command import QWEN, checks_of, mmcalib
from tests.e2e.media import photo, sound
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(9):
        photo(folder / f"{number}.jpg", 800 + 40 * number, 600)
    # 16,384 tokens are the most that the model takes of one picture; this is 16,290.
    photo(folder / "large.jpg", 5400, 2700)
    return folder


def calibrated(pictures: Path, gpu: str) -> Calibration:
    policy = library.Policy(max_model_len=32_768)
    return library.calibrate(QWEN, pictures, policy=policy, gpu=gpu, validate="none")


def test_sixteen_gib_hold_more_with_every_item_whole(pictures: Path) -> None:
    found = calibrated(pictures, "RTX-4080")
    default, after = found.memory.default.kv_cache_tokens, found.memory.calibrated.kv_cache_tokens
    assert default
    assert after
    assert after >= 1.7 * default
    assert all(p.share_downscaled == 0 for p in found.frontier if p.choice == "chosen")
    assert checks_of(found)["memory reserve"].status == "pass"
    smaller = [p for p in found.frontier if p.max_tokens <= 1024 and p.kv_cache_tokens]
    assert max(p.kv_cache_tokens or 0 for p in smaller) >= 2 * default


def test_twelve_gib_start_at_all_by_remedies_with_every_item_whole(pictures: Path) -> None:
    found = calibrated(pictures, "RTX-3060-12G")
    assert found.memory.default.kv_cache_tokens is None
    assert (found.memory.default.kv_cache_bytes or 0) < 0
    assert (found.memory.calibrated.kv_cache_tokens or 0) >= 32_768
    assert all(p.share_downscaled == 0 for p in found.frontier if p.choice == "chosen")
    remedies = {"max_num_seqs": 64, "gpu_memory_utilization": 0.95}
    assert {name: found.engine_config[name] for name in remedies} == remedies
    assert checks_of(found)["memory reserve"].status == "pass"
    reasons = {e.setting: e.reason for e in found.evidence}
    why = "vLLM would not start on RTX-3060-12G with less"
    assert reasons["gpu_memory_utilization"].startswith(why)


def test_gpus_and_models_side_by_side(tmp_path: Path, engine_cache: Path) -> None:
    media, out = tmp_path / "media", tmp_path / "out"
    for number, (width, height) in enumerate([(640, 480), (1280, 720)]):
        photo(media / f"{number}.jpg", width, height, number)
    done = mmcalib(
        engine_cache,
        *("run", "--model", f"{QWEN},Qwen/Qwen2.5-VL-7B-Instruct", "--gpu", "T4,L4"),
        *("--max-model-len", "8192"),
        *("--data", media, "--validate", "none", "--out", out, "--json"),
    )
    fits("comparison", done.stdout)
    rows = json.loads(done.stdout)["runs"]
    assert json.loads((out / "comparison.json").read_text()) == json.loads(done.stdout)
    assert [(row["folder"], row["verdict"], row["starts"]) for row in rows] == [
        ("Qwen2.5-VL-3B-Instruct-T4", "pass", True),
        ("Qwen2.5-VL-3B-Instruct-L4", "pass", True),
        ("Qwen2.5-VL-7B-Instruct-T4", "fail", False),
        ("Qwen2.5-VL-7B-Instruct-L4", "pass", True),
    ]
    for row in (one for one in rows if one["starts"]):
        found = Calibration.load(out / row["folder"] / "calibration.json")
        assert found.memory.calibrated.kv_cache_tokens == row["kv_cache_tokens"]
        assert found.memory.calibrated.gpu == row["gpu"]
        assert (out / row["folder"] / "engine.yaml").is_file()
    assert rows[1]["kv_cache_tokens"] > rows[0]["kv_cache_tokens"]
    assert not (out / rows[2]["folder"]).exists(), "it is known not to fit before it is measured"
    assert "does not fit on T4" in rows[2]["problem"]
    assert done.stderr.count("reading the corpus") == 1


NAME = "VLLM_MAX_AUDIO_DECODE_DURATION_S"


def test_the_command_that_a_run_names_counts_the_items_in_and_sets_the_variable(
    tmp_path: Path, engine_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    media, out = tmp_path / "media", tmp_path / "out"
    sound(media / "short.wav", 3.0, 16_000)
    sound(media / "long.wav", 9.0, 16_000)
    monkeypatch.setenv(NAME, "5")
    words = ("run", "--model", "Qwen/Qwen2-Audio-7B-Instruct", "--data", media, "--out", out)
    done = mmcalib(engine_cache, *words, "--validate", "budget", "--emit", "env")
    first = Calibration.load(out / "calibration.json")
    assert first.corpus.items == 1
    assert first.corpus.modalities["audio"].tokens["max"] == 75
    # Without a GPU the reserve is known in tokens alone, and every output says so.
    reserved = checks_of(first)["memory reserve"]
    assert (first.verdict, reserved.status) == ("pass", "warn")
    for text in (reserved.detail, (out / "report.md").read_text()):
        assert "only tokens were compared, because --gpu was not given" in text
    lines = (out / "engine.env").read_text().splitlines()
    assert f"{NAME}=5" in lines
    assert f"# {NAME}=9" in lines
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("the server rejects some items")]
    variable, *again = shlex.split(line.partition("include them: ")[2])
    assert variable == f"{NAME}=9"
    assert again[0] == "mmcalib"
    monkeypatch.setenv(*variable.split("=", 1))
    done = mmcalib(engine_cache, *again[1:])
    second = Calibration.load(out / "calibration.json")
    assert second.corpus.items == 2
    assert second.corpus.modalities["audio"].tokens["max"] == 225
    assert "the server rejects some items" not in done.stderr
    assert f"Serve:  {NAME}=9 " in done.stderr
    assert [x for x in (out / "engine.env").read_text().splitlines() if NAME in x] == [f"{NAME}=9"]
