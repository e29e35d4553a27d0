"""The output of `mmcalib plan` and `mmcalib validate`."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mmcalib.limits.demand import ObservedOom
from mmcalib.limits.values import ProfileReserve
from mmcalib.prediction.rehearse import budget_figures
from mmcalib.remedies.log import LogAnswer
from mmcalib.remedies.memory import Proposal
from mmcalib.report.terminal_memory import print_log, print_plan, print_validation
from mmcalib.results.memory import Memory
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import (
    Combination,
    Plan,
    TriedFixes,
    ValidatedBudgets,
    ValidatedMemory,
    Validation,
)
from tests.builders import some
from tests.report.golden import check_golden, printed
from tests.schemas import fits
from tests.workflows.rehearsals import BUDGET

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
GIB, MIB = 1 << 30, 1 << 20

OOM = (
    "ERROR 01-12 10:00:51 [core.py:866] torch.OutOfMemoryError: CUDA out of memory. Tried to "
    "allocate 2.00 GiB. GPU 0 has a total capacity of {total} GiB of which 1.00 GiB is free.\n"
)
SGLANG = (
    "[2026-01-12 10:00:20 TP0] Load weight end. type=Qwen2_5_VLForConditionalGeneration, avail "
    "mem=6.50 GB.\n[2026-01-12 10:00:30 TP0] " + OOM.partition("] ")[2].format(total="22.03")
)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("nothing of a server\n", "not the log of a vLLM server", ""),
        ("sglang serve\n" + SGLANG, "not the log of a vLLM server, but of SGLang", "--log FILE"),
        (OOM.format(total="79.19"), "H100-80G", "--gpu A100-80G"),
        (OOM.format(total="79.19"), "the log names none", "--model MODEL"),
        (OOM.format(total="66.66"), "no known GPU has the log's 66.66GiB", "--capability X.Y"),
        (
            "INFO: Starting to load model /nowhere/m...\n",
            "does not name its GPU; cannot find the log's model: /nowhere/m is not a folder",
            "--gpu NAME",
        ),
        (
            "Automatically detected platform rocm.\nStarting to load model org/m...\n",
            "the log is from an AMD GPU (platform rocm); mmcalib rehearses memory of NVIDIA GPUs",
            "validate without --gpu",
        ),
    ],
)
def test_all_that_a_log_does_not_say_is_asked_for_at_once(text, says, hint, cli, tmp_path) -> None:
    (tmp_path / "server.log").write_text(text)
    ended = cli("plan", "--log", "server.log")
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert hint in ended.err


def test_the_model_of_a_log_is_looked_for_before_vllm_reads_anything(cli, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(
        "INFO 03-19 11:13:12 [utils.py:326] non-default args: {'model': '/home/me/.cache/"
        "huggingface/hub/models--opendatalab--MinerU2.5-2509-1.2B/snapshots/895c3a49'}\n"
        "INFO 03-19 11:13:17 [__init__.py:711] Resolved architecture: "
        "Qwen2VLForConditionalGeneration\n"
    )
    ended = cli("plan", "--log", "server.log", "--gpu", "L4")
    assert (ended.code, ended.out) == (1, "")
    assert "\nopendatalab/MinerU2.5-2509-1.2B: what the log says\n" in ended.err
    assert "cannot find the log's model: model opendatalab/MinerU2.5-2509-1.2B not" in ended.err
    assert "such as Qwen/Qwen2-VL-2B-Instruct" in ended.err


def test_a_log_answers_by_itself_without_its_model(cli, tmp_path: Path) -> None:
    """Published: an RTX 3090 whose warm-up ran out of memory starts with 0.94."""
    (tmp_path / "server.log").write_text(
        "non-default args: {'model': 'org/m', 'gpu_memory_utilization': 0.97}\n"
        "Model loading took 14.36 GiB memory and 20.1 seconds\n"
        "Available KV cache memory: 6.20 GiB\n"
        '  File "/vllm/v1/worker/gpu_worker.py", line 413, in compile_or_warm_up_model\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 0 has a "
        "total capacity of 23.54 GiB of which 120.44 MiB is free.\n"
    )
    ended = cli("plan", "--log", "server.log", "--json")
    assert ended.code == 2
    plan = Plan.model_validate_json(ended.out)
    assert plan.verdict == "not rehearsed"
    log = some(plan.log)
    assert log.missing_bytes == round(594 * MIB) - round(120.44 * MIB)
    assert log.figures["weights_bytes"] == round(14.36 * GIB)
    assert [fix.flags for fix in log.fixes] == ["--gpu-memory-utilization 0.94"]
    assert "computed from the log" in " ".join(ended.err.split())
    assert "RTX-3090" in plan.problem
    fits("plan", ended.out)


SHORT = Memory(
    total_bytes=12 * GIB,
    weights_bytes=7 * GIB,
    kv_cache_bytes=-GIB,
    note="No available memory for the cache blocks.",
    starts=False,
    label="rehearsed",
)

HELD = {"kv_cache_bytes": GIB, "kv_cache_tokens": 29_127, "max_concurrency": 3.56}
ENOUGH = SHORT.model_copy(update={**HELD, "starts": True, "note": ""})


def tried(flags: str, **more: object) -> TriedFixes:
    values: dict[str, object] = {
        "flags": flags,
        "changes": {},
        "cost": "speed",
        "price": "slower",
        "reaches": False,
        "lacking_bytes": GIB,
        "kv_cache_bytes": -GIB,
        "kv_cache_tokens": None,
        "problem": "",
    }
    return TriedFixes.model_validate({**values, **more})


def answer(**more: object) -> LogAnswer:
    values: dict[str, Any] = {
        "line": 1,
        "start": "line 1: m, failed",
        "others": (),
        "vllm": "0.9",
        "model": "m",
        "platform": "",
        "fixes": (),
        "phase": "kv cache",
        "failures": ("no memory\x1b[2J",),
        "missing_bytes": GIB,
        "figures": {"weights_bytes": 7 * GIB, "kv_cache_bytes": -GIB},
        "least": "",
    }
    return LogAnswer(**{**values, **more})


def a_plan(**more: object) -> Plan:
    price = Proposal("--eager", {"eager": True}, "speed", "slower")
    values: dict[str, object] = {
        "goal": "fits",
        "verdict": "reached",
        "memory": SHORT,
        "lacking_bytes": 2 * GIB,
        "tried": [
            tried("--eager", reaches=True, lacking_bytes=0, kv_cache_bytes=GIB),
            tried("--refused", problem="it asserts", kv_cache_bytes=None),
        ],
        "combination": Combination(
            fixes=[price], flags="--eager", changes={"eager": True}, proven=True, memory=ENOUGH
        ),
        "model": MODEL,
        "source": "bundled",
        "gpu": "12GiB",
        "capability": "8.6",
        "vllm": "0.32.0",
        "mmcalib": "0",
        "rehearsals": 9,
        "assumptions": ["nothing else runs on the GPU"],
    }
    return Plan.model_validate({**values, **more})


def page(plan: Plan, *, verbose: bool = False, width: int = 100) -> str:
    log = "" if plan.log is None else printed(partial(print_log, plan.log), width)
    return log + printed(partial(print_plan, plan, verbose=verbose), width)


def test_golden() -> None:
    fix = Proposal("--max-num-seqs 8", {"max_num_seqs": 8}, "speed", "at most 8")
    log = answer(fixes=(fix,), notes=("of 0.9",), others=("line 9: n, started",))
    plan = a_plan(kept=["max_model_len=32k"], log=log, logged=SHORT, anchored_bytes=-GIB)
    check_golden("plan.txt", page(plan, verbose=True))


def test_the_answer_comes_first_and_the_rest_with_verbose() -> None:
    shown = page(a_plan())
    assert len(shown.splitlines()) <= 20
    assert "nothing else runs" not in shown
    assert "--refused" not in shown
    assert "nothing else runs" in page(a_plan(), verbose=True)
    assert shown.rstrip().endswith("Add to vllm serve: --eager")
    log = answer(failures=("memory " * 40 + "remedy",), figures={"others_bytes": GIB})
    shown = page(a_plan(log=log))
    assert "memory remedy" in " ".join(shown.split())
    assert shown.rstrip().endswith("Stop the other process, and add to vllm serve: --eager")


def test_a_log_that_failed_never_has_its_goal_reached_already() -> None:
    oom = ObservedOom("serving", GIB, 0, None, None, None, 0, 0, 0, GIB, 0)
    for verdict, says in (("reached already", "options"), ("not reproduced", "server failed")):
        shown = page(a_plan(verdict=verdict, memory=ENOUGH, combination=None, oom=oom))
        assert says in shown
        assert "already" not in shown
        assert "KV cache 1.00 GiB, 29,127 tokens, 3.56" in shown


FALLS_SHORT = CheckResult(
    name="memory reserve", status="fail", detail="under-reserved by 0.46 GiB", remedy="a cure"
)


@pytest.mark.parametrize("verdict", ["under-reserved", "out of reach"])
def test_nothing_is_offered_to_add_that_does_not_reach_the_goal(verdict: str) -> None:
    least = "a GPU with about 30.00 GiB, or --model org/m-FP8"
    shown = page(a_plan(verdict=verdict, combination=None, least=least, reserved=FALLS_SHORT))
    assert "Add to vllm serve" not in shown
    assert f"The least that would: {least}" in " ".join(shown.split())
    assert "→ a cure" in shown


def test_what_startup_does_not_reserve_is_said_of_each_proposal() -> None:
    said = "the costliest step, rehearsed"
    holds = CheckResult(name="memory reserve", status="pass", detail=said)
    best = some(a_plan().combination).model_copy(update={"reserved": holds})
    shown = page(a_plan(memory=ENOUGH, reserved=FALLS_SHORT, combination=best))
    assert shown.index(said) < shown.index("under-reserved by 0.46 GiB")


def test_flags_are_not_broken_within_words_on_eighty_columns() -> None:
    flags = "--max-num-batched-tokens 2048 --gpu-memory-utilization 0.95 --kv-cache-dtype fp8"
    shown = page(a_plan(tried=[tried(flags)]), verbose=True, width=80)
    assert [word for word in flags.split() if word not in shown] == []
    assert max(map(len, shown.splitlines())) <= 80


def a_validation(**changes: Any) -> Validation:
    budget = budget_figures(BUDGET, ProfileReserve(324, 16_384))
    found = Validation(
        checks=[
            CheckResult(name="config parsing", status="pass", detail="all 3 arrive"),
            CheckResult(name="image size hint", status="fail", detail="a trap", remedy="drop it"),
            CheckResult(name="memory reserve", status="fail", detail="no", remedy="drop it"),
        ],
        verdict="fail",
        config="c.yaml",
        flags=["--max-num-seqs", "4"],
        model="Qwen/Qwen2.5-VL-3B-Instruct",
        source="bundled",
        architecture="Qwen2_5_VLForConditionalGeneration",
        engine_config={"limit_mm_per_prompt": {"image": {"count": 1, "width": 512}}},
        budget=ValidatedBudgets(default=budget, config=budget),
        memory=ValidatedMemory(
            default=None,
            config=Memory(gpu="L4", kv_cache_bytes=GIB, kv_cache_tokens=9),
            measured=None,
        ),
        startup=None,
        items="made up",
        gpu="L4",
        tool={"mmcalib": "0", "vllm": "0.32.0"},
        doubts=[],
    )
    return found.model_copy(update=changes)


def page_of(validation: Validation) -> str:
    return printed(partial(print_validation, validation), width=100)


def test_the_page_says_what_it_is_of_and_what_is_wrong_first() -> None:
    shown = page_of(a_validation())
    first = next(line for line in shown.splitlines() if line)
    assert first == "c.yaml --max-num-seqs 4: Qwen/Qwen2.5-VL-3B-Instruct (bundled) on L4"
    assert "limit_mm_per_prompt  {image: {count: 1, width: 512}}" in shown
    assert "KV cache on L4" in shown
    assert shown.index("image size hint: a trap") < shown.index("config parsing: all 3 arrive")
    assert shown.count("→ drop it") == 2, "what is short is said again"
    assert "PASS" not in shown


def test_a_file_that_cannot_be_read_has_a_page_too() -> None:
    unread = dict.fromkeys(("engine_config", "budget", "memory", "source"))
    words = {"model": "", "gpu": "", "items": "none", "config": "c\x1b[2J.yaml"}
    shown = page_of(a_validation(**unread, **words, tool={}, flags=[]))
    assert "\x1b" not in shown
    assert "What vLLM" not in shown
