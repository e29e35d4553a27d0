"""What `mmcalib plan` and `mmcalib validate` print."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mmcalib.derive.demand import ObservedOom
from mmcalib.report.terminal_memory import print_plan, print_validation
from mmcalib.results.memory import EncoderBudget, Memory
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import (
    Combination,
    LogSummary,
    Plan,
    Price,
    TriedFix,
    ValidatedBudgets,
    ValidatedMemory,
    Validation,
)
from tests.report.golden import check_golden

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"

GIB = 1 << 30

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of {total} GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process "
    "has 21.00 GiB memory in use.\n"
)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("nothing of a server\n", "not the log of a vLLM server", ""),
        (OOM.format(total="79.19"), "H100-80G", "--gpu A100-80G"),
        (OOM.format(total="66.66"), "no known GPU has the log's 66.66GiB", "--capability X.Y"),
        (OOM.format(total="93.09"), "no model given, and the log names none", "--model MODEL"),
        ("INFO: Starting to load model /nowhere/m...\n", "does not name its GPU", "--gpu NAME"),
    ],
)
def test_a_log_that_does_not_say_enough_names_the_option(
    text: str, says: str, hint: str, cli, tmp_path: Path
) -> None:
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
    assert "cannot find the log's model: model opendatalab/MinerU2.5-2509-1.2B not" in ended.err
    assert "such as Qwen/Qwen2-VL-2B-Instruct" in ended.err


def tried(name: str, **more: object) -> TriedFix:
    values: dict[str, object] = {
        "name": name,
        "flags": f"--{name}",
        "changes": {name: True},
        "cost": "speed",
        "price": "slower",
        "reaches": False,
        "lacking_bytes": GIB,
        "kv_cache_bytes": -GIB,
        "kv_cache_tokens": None,
        "max_concurrency": None,
        "problem": "",
        "warning": "",
    }
    return TriedFix.model_validate({**values, **more})


SHORT = Memory(
    total_bytes=12 * GIB,
    weights_bytes=7 * GIB,
    kv_cache_bytes=-GIB,
    note="No available memory for the cache blocks.",
    label="rehearsed",
)

ENOUGH = SHORT.model_copy(
    update={"kv_cache_bytes": GIB, "kv_cache_tokens": 29_127, "max_concurrency": 3.56, "note": ""}
)


def a_plan(**more: object) -> Plan:
    price = Price(name="eager", flags="--eager", cost="speed", price="slower")
    values: dict[str, object] = {
        "goal": "fits",
        "verdict": "reached",
        "memory": SHORT,
        "lacking_bytes": 2 * GIB,
        "fixes": [
            tried("eager", reaches=True, lacking_bytes=0, kv_cache_bytes=GIB),
            tried("hint", reaches=True, warning="a trap: nothing reserves it"),
            tried("refused", problem="it asserts", lacking_bytes=None, kv_cache_bytes=None),
        ],
        "combination": Combination(
            fixes=[price],
            flags="--eager",
            changes={"eager": True},
            reaches=True,
            proven=True,
            memory=ENOUGH,
        ),
        "log": None,
        "model": MODEL,
        "source": "bundled",
        "config": "",
        "gpu": "12GiB",
        "capability": "8.6",
        "vllm": "0.32.0",
        "mmcalib": "0",
        "rehearsals": 9,
        "assumptions": ["nothing else runs on the GPU"],
    }
    return Plan.model_validate({**values, **more})


def page(plan: Plan) -> str:
    text = io.StringIO()
    print_plan(plan, Console(file=text, width=100, color_system=None, highlight=False))
    return text.getvalue()


def test_golden() -> None:
    best = a_plan().combination
    assert best is not None
    price = Price(name="short", flags="--short", cost="requests", price="shorter")
    other = best.model_copy(update={"fixes": [price], "flags": "--short"})
    log = LogSummary(vllm="0.9", model="m", failures=["out of memory\x1b[2J"], notes=["of 0.9"])
    shown = page(a_plan(others=[other], kept=["max_model_len=32k"], log=log))
    check_golden("plan.txt", "\n".join(line.rstrip() for line in shown.splitlines()) + "\n")


def test_a_log_with_an_oom_never_has_its_goal_reached_already() -> None:
    oom = ObservedOom("serving", GIB, 0, None, None, None, 0, 0, 0, GIB, 0)
    log = LogSummary(vllm="", model="", failures=[], notes=[], oom=oom)
    plan = a_plan(verdict="reached already", memory=ENOUGH, fixes=[], combination=None, log=log)
    assert "already" not in page(plan)
    assert "KV cache 1.00 GiB, 29,127 tokens, 3.56" in page(plan)


FALLS_SHORT = CheckResult(
    name="memory reserve", status="fail", detail="under-reserved by 0.46 GiB", remedy="a cure"
)

HOLDS = CheckResult(name="memory reserve", status="pass", detail="the costliest step, rehearsed")


def test_what_startup_does_not_reserve_is_said_of_each_proposal() -> None:
    best = a_plan().combination
    assert best is not None
    mended = page(
        a_plan(
            memory=ENOUGH,
            reserved=FALLS_SHORT,
            combination=best.model_copy(update={"reserved": HOLDS}),
        )
    )
    assert mended.index("under-reserved by 0.46 GiB") < mended.index(
        "the costliest step, rehearsed"
    )
    assert mended.rstrip().endswith("Add to vllm serve: --eager")
    short = best.model_copy(update={"reserved": FALLS_SHORT})
    shown = page(a_plan(verdict="under-reserved", combination=short))
    assert "no fix reserves enough" in shown
    assert "with --eager" in shown
    assert "→ a cure" in shown
    assert "Add to vllm serve" not in shown


def test_out_of_reach_still_shows_the_best() -> None:
    best = a_plan().combination
    assert best is not None
    best = best.model_copy(update={"reaches": False, "proven": False, "memory": SHORT})
    shown = page(a_plan(verdict="out of reach", combination=best))
    assert "The best fix is not enough" in shown
    assert "A cheaper fix may exist" in shown


def test_flags_are_not_broken_within_words_on_eighty_columns() -> None:
    flags = "--max-num-batched-tokens 2048 --gpu-memory-utilization 0.95 --kv-cache-dtype fp8"
    text, plan = io.StringIO(), a_plan(fixes=[tried("x", flags=flags, price="slower prefill")])
    print_plan(plan, Console(file=text, width=80, color_system=None, highlight=False))
    shown = text.getvalue()
    assert [word for word in flags.split() if word not in shown] == []
    assert "slower prefill" in shown
    assert max(map(len, shown.splitlines())) <= 80


def a_validation(**changes: Any) -> Validation:
    budget = EncoderBudget(
        encoder_budget_tokens=16_384,
        max_tokens_per_item={"image": 16_384},
        profiled_modality="image",
        profiled_items=1,
        profiled_tokens=324,
        worst_step_tokens=16_384,
        max_num_batched_tokens=2048,
    )
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
    out = io.StringIO()
    print_validation(validation, Console(file=out, width=100, color_system=None, highlight=False))
    return out.getvalue()


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
    nothing = a_validation(
        engine_config=None, budget=None, memory=None, source=None, model="", gpu="", tool={},
        items="none", flags=[], config="c\x1b[2J.yaml",
    )  # fmt: skip
    shown = page_of(nothing)
    assert "\x1b" not in shown
    assert "What vLLM" not in shown
