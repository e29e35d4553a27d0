"""`mmcalib run … -- VLLM FLAGS`: measured, rehearsed and written under them."""

from pathlib import Path

import pytest
import yaml

from tests.builders import some
from tests.e2e.command import QWEN, checks_of, mmcalib, run
from tests.e2e.media import photo

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def media(tmp_path: Path) -> Path:
    return photo(tmp_path / "media/a.jpg", 1_200, 900).parent


def test_they_are_rehearsed_and_written(media: Path, tmp_path: Path, engine_cache: Path) -> None:
    ran = run(
        *(engine_cache, tmp_path / "out", "--model", QWEN, "--data", media),
        *("--gpu-memory", "24GiB", "--capability", "8.9", "--validate", "startup"),
        *("--", "--tensor-parallel-size", "2", "--no-enable-prefix-caching"),
        *("--max-num-seqs", "4", "--gpu-memory-utilization", "0.8"),
    )
    written = yaml.safe_load((tmp_path / "out/engine.yaml").read_text("utf-8"))
    assert written["tensor-parallel-size"] == 2
    assert written["no-enable-prefix-caching"] is True
    assert (written["max-num-seqs"], written["gpu-memory-utilization"]) == (4, 0.8)
    memory = ran.calibration.memory
    assert memory.calibrated.ranks == memory.default.ranks == 2
    # Half of the language model's; each rank has the whole vocabulary's share, too.
    assert 3.4 < some(memory.calibrated.weights_bytes) / 2**30 < 4.2
    said = {one.setting: one.label for one in ran.calibration.evidence}
    for name in ("tensor_parallel_size", "max_num_seqs", "gpu_memory_utilization"):
        assert said[name] == "given"
    checks = checks_of(ran.calibration)
    assert checks["not started with --tensor-parallel-size"].status == "skip"
    start = checks["engine start"]
    assert start.status == "pass"
    assert start.detail.endswith(": gpu_memory_utilization, tensor_parallel_size")
    assert "not started with --tensor-parallel-size" in " ".join(ran.stderr.split())


def test_what_the_checkpoint_is_not_is_one_line(media, tmp_path: Path, engine_cache: Path) -> None:
    out = tmp_path / "out"
    done = mmcalib(
        engine_cache,
        *("run", "--model", QWEN, "--data", media, "--out", out, "--gpu", "L4"),
        *("--", "--quantization", "awq"),
        code=2,
    )
    assert "Cannot find the config file for awq" in " ".join(done.stderr.split())
    assert "--quantization fp8" in " ".join(done.stderr.split())
    assert not (out / "engine.yaml").exists()


def test_a_run_starts_from_a_manifest(media: Path, tmp_path: Path, engine_cache: Path) -> None:
    manifest, out = tmp_path / "pod.yaml", tmp_path / "out"
    manifest.write_text(
        f"kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args:\n    - {QWEN}\n"
        "    - --max-model-len=8192\n    - --gpu-memory-utilization\n    - '0.8'\n"
        '    - --limit-mm-per-prompt\n    - \'{"image": 3, "video": 0}\'\n'
        "    - --max-num-batched-tokens\n    - '8192'\n    - --port\n    - '9000'\n"
    )
    words = ("--config", manifest, "--data", media, "--gpu", "L4", "--validate", "budget")
    ran = run(engine_cache, out, *words)
    found = ran.document
    given = {"max_model_len": 8192, "gpu_memory_utilization": 0.8}
    assert found["default_config"] == given
    limits = {"image": 3, "video": 0}
    assert found["yours"]["engine_config"] == {
        **given,
        "limit_mm_per_prompt": limits,
        "max_num_batched_tokens": 8192,
    }
    batches = {name: one["max_num_batched_tokens"] for name, one in found["budget"].items()}
    assert (batches["default"], batches["yours"]) == (2048, 8192)
    tokens = {name: one["kv_cache_tokens"] for name, one in found["memory"].items() if one}
    assert 0 < tokens["yours"] < tokens["default"]
    written = yaml.safe_load((out / "engine.yaml").read_text("utf-8"))
    assert (written["max-model-len"], written["gpu-memory-utilization"]) == (8192, 0.8)
    # Without requests nothing else says how many come together.
    assert written["limit-mm-per-prompt"]["image"] == 3
    diff = (out / "engine.diff").read_text("utf-8")
    assert f"\n-    - '8192'\n+    - '{batches['calibrated']}'\n" in diff
    assert "without limits" in ran.stderr
