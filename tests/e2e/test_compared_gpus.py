"""Two GPUs and two models in one run, on real vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmcalib import Calibration
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import photo
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.long]

LARGE = "Qwen/Qwen2.5-VL-7B-Instruct"


def test_gpus_and_models_side_by_side(tmp_path: Path, engine_cache: Path) -> None:
    media, out = tmp_path / "media", tmp_path / "out"
    for number, (width, height) in enumerate([(640, 480), (1280, 720)]):
        photo(media / f"{number}.jpg", width, height, number)
    done = mmcalib(
        engine_cache,
        *("run", "--model", f"{QWEN},{LARGE}", "--gpu", "T4,L4", "--max-model-len", "8192"),
        *("--data", media, "--validate", "none", "--out", out, "--json"),
    )
    assert done.returncode == 0, done.stderr
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
