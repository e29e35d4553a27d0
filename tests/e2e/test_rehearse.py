"""The command on the installed vLLM: figures as JSON, two configs, refusals, and `run --gpu`."""

import json
from pathlib import Path

import pytest

from mmcalib.results.memory import Rehearsal
from tests.builders import some
from tests.e2e.command import QWEN, mmcalib, run
from tests.e2e.media import photo
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_json_has_what_scripts_rely_on(engine_cache: Path) -> None:
    words = ("--model", QWEN, "--gpu", "L4", "--json", "--quiet", "--", "--max-model-len", "32768")
    ended = mmcalib(engine_cache, "rehearse", *words)
    assert (ended.returncode, ended.stderr) == (0, "")
    fits("rehearse", ended.stdout)
    found = Rehearsal.model_validate_json(ended.stdout)
    budget = some(found.budget)
    assert budget.encoder_budget_tokens == 32_768
    # These three were null.
    assert budget.profiled_tokens
    assert budget.worst_step_tokens == 32_768
    assert budget.adequacy == round(budget.profiled_tokens / 32_768, 4)
    assert found.memory.kv_bytes_per_token == 36_864
    assert found.starts
    assert any("allowance for non-torch memory" in line for line in found.assumptions)


def test_side_by_side_on_a_gpu_that_is_too_small(engine_cache: Path, tmp_path: Path) -> None:
    default, capped = tmp_path / "default.yaml", tmp_path / "capped.yaml"
    default.write_text(f"model: {QWEN}\n")
    capped.write_text(
        f"model: {QWEN}\nmax-model-len: 8192\nlimit-mm-per-prompt:\n  image: 1\n  video: 0\n"
        "mm-processor-kwargs:\n  size:\n    shortest_edge: 3136\n    longest_edge: 1003520\n"
    )
    words = ("--gpu-memory", "12GiB", "--capability", "8.6", "--strict", "--json", "--verbose")
    ended = mmcalib(engine_cache, "rehearse", *words, "--compare", default, capped, code=3)
    fits("rehearse", ended.stdout)
    before, after = (Rehearsal.model_validate(one) for one in json.loads(ended.stdout))
    assert (before.starts, after.starts) == (False, True)
    assert some(before.memory.kv_cache_bytes) < 0
    assert "default.yaml: vLLM would not start" in " ".join(ended.stderr.split())
    assert "error: vLLM would not start" in ended.stderr
    assert "  | rehearsal: " in ended.stderr, "what vLLM logs"


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--max-model-len", "99999999"), 1, "max_model_len (99999999) is greater than"),
        (("--no-such-flag", "3"), 2, "unrecognized arguments: --no-such-flag"),
    ],
)
def test_what_vllm_refuses_is_its_own_words(engine_cache, flags, code: int, says: str) -> None:
    words = ("--model", QWEN, "--gpu", "L4", "--quiet", "--", *flags)
    ended = mmcalib(engine_cache, "rehearse", *words, code=code)
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_run_shows_calibrated_and_measured_beside_default_and_predicted(engine_cache, tmp_path):
    data = ("--data", photo(tmp_path / "media/a.jpg", 640, 480).parent)
    words = ("--gpu", "L4", "--max-model-len", "8192", "--validate", "startup")
    ran = run(engine_cache, tmp_path / "out", "--model", QWEN, *data, *words)
    found = ran.document
    memory = found["memory"]
    assert memory["default"]["gpu"] == memory["calibrated"]["gpu"] == "L4"
    assert memory["calibrated"]["kv_cache_tokens"] > memory["default"]["kv_cache_tokens"]
    assert memory["measured"]["weights_bytes"] == pytest.approx(
        memory["calibrated"]["weights_bytes"], rel=0.05
    )
    # Between caps that decide, not every one is rehearsed.
    points = [point for point in found["frontier"] if point["choice"] != "open"]
    assert [point["choice"] for point in points] == ["beaten", "chosen", "beaten"]
    assert all(point["kv_cache_tokens"] for point in points)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["prediction accuracy"]["status"] == "pass"
    assert checks["memory on L4"]["status"] == "pass"
    assert "starts on L4" in ran.stderr


@pytest.mark.long
def test_more_detail_costs_the_kv_cache_that_its_rehearsal_has(engine_cache, tmp_path) -> None:
    """280 tokens are 0.65 megapixels, 560 are 1.29, and 1,120 are 2.58."""
    for name, width, height in (("a", 900, 600), ("b", 1200, 1000), ("c", 1600, 1500)):
        photo(tmp_path / f"media/{name}.jpg", width, height)
    out = tmp_path / "out"
    subject = ("--model", "google/gemma-4-E4B-it", "--data", tmp_path / "media")
    words = ("--gpu", "L4", "--max-model-len", "32768", "--prefer", "detail")
    found = run(engine_cache, out, *subject, *words, "--validate", "budget").document
    points = {point["value"]: point for point in found["frontier"]}
    moved = {v: (p["items_shrunk"], p["items_gaining"]) for v, p in points.items() if v >= 280}
    assert moved == {280: (2, 0), 560: (1, 2), 1120: (0, 2)}
    assert [v for v, p in points.items() if p["choice"] == "chosen"] == [1120]
    emitted = found["engine_config"]
    assert emitted["mm_processor_kwargs"] == {"images_kwargs": {"max_soft_tokens": 1120}}
    for value in (560, 1120):
        kwargs = json.dumps({"images_kwargs": {"max_soft_tokens": value}})
        words = ("--config", out / "engine.yaml", "--gpu", "L4", "--json", "--")
        batch = ("--max-num-batched-tokens", str(points[value]["encoder_budget_tokens"]))
        flags = ("--mm-processor-kwargs", kwargs, *batch)
        ended = mmcalib(engine_cache, "rehearse", *words, *flags)
        rehearsed = Rehearsal.model_validate_json(ended.stdout)
        assert rehearsed.memory.kv_cache_tokens == points[value]["kv_cache_tokens"], value
        assert rehearsed.memory.max_concurrency == points[value]["max_concurrency"], value
