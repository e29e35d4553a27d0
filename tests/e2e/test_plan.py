"""`mmcalib plan` on the installed vLLM: what does not fit, what fits, and a server's log."""

import json
import shlex
from pathlib import Path

import pytest

from mmcalib import Calibration
from mmcalib.models.gpus import find_gpu
from mmcalib.releases.constants import CONTEXT_BYTES
from mmcalib.results.memory import Rehearsal
from mmcalib.results.plan import Plan, Validation
from mmcalib.text import GIB, MIB
from tests.builders import some
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import photo
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.slow]
SMALL = ("--gpu-memory", "12GiB", "--capability", "8.6")
SHARED = ("--gpu", "L4", "--gpu-memory-free", "17GiB")


def planned(cache: Path, *words: str | Path) -> Plan:
    """The plan that the command prints, which fits its schema."""
    ended = mmcalib(cache, "plan", "--json", "--quiet", *words)
    fits("plan", ended.stdout)
    return Plan.model_validate_json(ended.stdout)


def test_a_shared_card_gets_the_highest_utilization_that_starts(engine_cache: Path) -> None:
    """vLLM's own check decides: it starts if what is free is at least its share of the total."""
    args = ("--", "--max-model-len", "8192")
    plan = planned(engine_cache, "--model", QWEN, *SHARED, *args)
    memory = some(plan.memory)
    assert memory.starts is False
    assert "on startup is less than desired GPU memory utilization (0.92" in memory.note
    free, total = some(memory.free_bytes), some(memory.total_bytes)
    assert free == 17 * GIB - CONTEXT_BYTES
    most = next(share / 100 for share in range(100, 0, -1) if free >= share * total / 100)
    # Of that share, less than vLLM's own slack would stay free.
    assert some(plan.combination).flags == f"--gpu-memory-utilization {most - 0.01:g}"
    for share, code in ((most, 0), (round(most + 0.01, 2), 3)):
        words = ("--model", QWEN, *SHARED, "--strict", "--quiet", *args)
        said = ("--gpu-memory-utilization", str(share))
        mmcalib(engine_cache, "rehearse", *words, *said, code=code)


# A release that is not out: its KV cache is extensible, as vllm#56492 describes it.
LATE = """
from mmcalib.domain.memory import Division
from mmcalib.releases import constants
late = Division(1.0, 1.0, (), True, 150 << 20, 0.2, 0.02)
constants.DIVISIONS = (((0, 0), late), *constants.DIVISIONS)
"""


@pytest.mark.long
def test_a_kv_cache_sized_last_is_the_same_everywhere(engine_cache, tmp_path, monkeypatch) -> None:
    def asked(command: str, *words: str | Path, code: int = 0) -> str:
        subject = ("--model", QWEN, "--gpu", "L4", "--quiet")
        return mmcalib(engine_cache, command, *subject, *words, code=code).stdout

    (tmp_path / "sitecustomize.py").write_text(LATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out, config = tmp_path / "out", ("--config", tmp_path / "out" / "engine.yaml", "--json")
    data = photo(tmp_path / "media" / "a.jpg", 640, 480).parent
    asked("run", "--data", data, "--out", out, "--max-model-len", "8192", "--validate", "budget")
    found = Calibration.load(out / "calibration.json")
    memory = found.memory.calibrated
    assert found.counted_by == "Qwen2_5_VLProcessor of transformers"
    assert "gpu_memory_utilization" not in found.engine_config
    (outside,) = (one for one in found.checks if one.code == "MM052")
    assert (memory.mode, outside.status, memory.after_pool) == ("extensible", "pass", [])
    assert memory.requested_bytes == memory.free_bytes == find_gpu("L4").free_at_start
    left = (memory.kv_cache_bytes or 0) + memory.spare_bytes
    most = max(150 * MIB, 0.2 * (memory.activation_peak_bytes or 0), 0.02 * left)
    assert memory.spare_bytes == pytest.approx(most, abs=1)
    rehearsed = Rehearsal.model_validate_json(asked("rehearse", *config)).memory
    plan = Plan.model_validate_json(asked("plan", *config))
    validated = Validation.model_validate_json(asked("validate", *config, "--validate", "budget"))
    assert (plan.verdict, validated.verdict) == ("reached already", "pass")
    for one in (rehearsed, some(plan.memory), some(some(validated.memory).config)):
        assert (one.mode, one.kv_cache_bytes) == ("extensible", memory.kv_cache_bytes)
        assert one.spare_bytes == memory.spare_bytes
    # A share must be set beside other processes, and a given size of the KV cache turns it off.
    shared = ("--gpu-memory-free", "17GiB", "--strict")
    asked("rehearse", *config, *shared, code=3)
    asked("rehearse", *config, *shared, "--", "--gpu-memory-utilization", "0.7")
    given = asked("rehearse", *config, "--", "--kv-cache-memory-bytes", "4000000000")
    assert Rehearsal.model_validate_json(given).memory.mode == "profiled"


@pytest.mark.long
def test_what_does_not_fit_gets_the_cheapest_fixes_that_make_it_fit(engine_cache: Path) -> None:
    ended = mmcalib(engine_cache, "plan", "--model", QWEN, *SMALL, "--json")
    fits("plan", ended.stdout)
    plan = Plan.model_validate_json(ended.stdout)
    assert plan.verdict == "reached"
    assert some(plan.memory).kv_cache_tokens is None
    best = some(plan.combination)
    assert best.changes == {"gpu_memory_utilization": 0.95, "max_model_len": 30_720}
    assert [fix.cost for fix in best.fixes] == ["nothing", "requests"]
    assert best.flags in " ".join(ended.stderr.split())
    assert plan.tried[0].changes == {"limit_mm_per_prompt": {"video": 0}}
    words = ("--model", QWEN, *SMALL, "--strict", "--quiet", "--", *shlex.split(best.flags))
    again = mmcalib(engine_cache, "rehearse", *words)
    assert (again.returncode, again.stderr) == (0, "")


def test_a_goal_that_is_reached_by_a_size_hint_alone_is_reached_without_it(engine_cache) -> None:
    """It would start, and may run out of memory under load."""
    hinted = '{"image": {"count": 4, "width": 512, "height": 512}, "video": 0}'
    flags = ("--", "--max-model-len", "32768", "--limit-mm-per-prompt", hinted)
    plan = planned(engine_cache, "--model", QWEN, "--gpu", "L4", *flags)
    assert plan.verdict == "reached"
    assert some(plan.reserved).status == "fail"
    best = some(plan.combination)
    assert best.changes == {"limit_mm_per_prompt": {"image": 4, "video": 0}}
    assert some(best.reserved).status == "pass"


def test_a_server_out_of_memory_needs_another_configuration(engine_cache, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        f"INFO 08-31 08:01:29 [cli_args.py:325] non-default args: {{'model': '{QWEN}', "
        "'max_model_len': 8192, 'gpu_memory_utilization': 0.95, 'enforce_eager': True, 'port': 1, "
        "'limit_mm_per_prompt': {'image': {'count': 2, 'width': 512, 'height': 512}}}\n"
        "INFO 08-31 08:03:46 [gpu_model_runner.py:1801] Model loading took 7.1600 GiB and 1 s\n"
        "INFO 08-31 08:05:00 [launcher.py:46] Application startup complete.\n"
        'ERROR 08-31 09:12:00 [core.py:1131]   File "core.py", line 1170, in run_busy_loop\n'
        'ERROR 08-31 09:12:00 [core.py:1131]   File "m.py", line 2100, in _execute_mm_encoder\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.08 GiB. GPU 0 has a "
        "total capacity of 22.03 GiB of which 399.36 MiB is free. Of the allocated memory "
        "20.91 GiB is allocated by PyTorch, and 98.00 MiB is reserved by PyTorch but unallocated.\n"
    )
    ended = mmcalib(engine_cache, "plan", "--gpu", "L4", "--log", log, "--json")
    fits("plan", ended.stdout)
    plan = Plan.model_validate_json(ended.stdout)
    assert (plan.gpu, plan.verdict) == ("L4", "reached")
    assert plan.goal == "fits, and does not run out of memory"
    assert some(plan.reserved).status == "fail"
    assert [fix.flags for fix in some(plan.log).fixes] == ["--gpu-memory-utilization 0.91"]
    oom = some(plan.oom)
    assert oom.phase == "serving: encoder"
    assert (oom.step_modality, oom.step_limit_tokens) == ("image", 16_384)
    assert oom.outside_torch_bytes == pytest.approx((22.03 - 20.91) * GIB - (399.36 + 98) * MIB)
    assert oom.lacking_bytes == pytest.approx(1.08 * GIB - 399.36 * MIB + 150 * MIB, rel=0.001)
    best = some(plan.combination)
    # 0.84 GiB of 22.03 GiB are lacking; the hint shrinks the profile, and not what is admitted.
    changes = {"limit_mm_per_prompt": {"image": 2}, "gpu_memory_utilization": 0.91}
    assert best.changes == changes
    assert some(best.reserved).status == "pass"
    assert "what the log says" in ended.stderr


@pytest.mark.long
def test_dropping_a_size_hint_is_combined_with_what_reaches_the_goal(engine_cache: Path) -> None:
    hinted = '{"image": {"count": 2, "width": 512, "height": 512}, "video": 0}'
    subject = ("--model", "Qwen/Qwen2.5-VL-7B-Instruct", "--gpu", "L4")
    wish = ("--goal", "concurrency>=16", "--keep", "kv_cache_dtype")
    flags = ("--", "--max-model-len", "8192", "--limit-mm-per-prompt", hinted)
    plan = planned(engine_cache, *subject, *wish, *flags)
    assert plan.verdict == "reached"
    best = some(plan.combination)
    plain = {"image": 2, "video": 0}
    assert best.changes["limit_mm_per_prompt"] == plain
    assert best.changes["mm_processor_kwargs"]["images_kwargs"]["size"]["longest_edge"] <= 3_211_264
    assert some(best.memory.max_concurrency) >= 16
    assert some(best.reserved).status == "pass"
    assert best.fixes[0].cost == "KV cache"
    assert shlex.split(best.fixes[0].flags) == ["--limit-mm-per-prompt", json.dumps(plain)]


@pytest.mark.long
def test_a_step_that_fits_in_free_memory_needs_no_plan(engine_cache: Path) -> None:
    """Four sequences of Qwen3-VL-8B keep 15,088 tokens (494 MB) beyond the 1,296 reserved. They
    lack 0.46 GiB of the reserve, and 6 GiB stay free; 51 sequences lack nothing.
    """
    size = {"longest_edge": 331_776, "shortest_edge": 65_536}
    flags = ("--max-model-len", "32768", "--max-num-batched-tokens", "16384")
    media = ("--limit-mm-per-prompt", json.dumps({"image": 1, "video": 0}))
    processor = ("--mm-processor-kwargs", json.dumps({"size": size}))
    subject = ("--model", "Qwen/Qwen3-VL-8B-Instruct", "--gpu", "H100-80G")
    few, many = (
        planned(engine_cache, *subject, "--", "--max-num-seqs", seqs, *flags, *media, *processor)
        for seqs in ("4", "51")
    )
    reserved = some(few.reserved)
    assert reserved.status == "warn"
    assert "beside 16,384 tokens in the encoder cache (0.50 GiB)" in reserved.detail
    assert "vLLM does not reserve 0.46 GiB of it" in reserved.detail
    assert (few.verdict, few.combination) == ("reached already", None)
    assert some(many.reserved).status == "pass"
