"""`mmcalib plan` before any child is started, and what it prints."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from mmcalib.derive.demand import ObservedOom
from mmcalib.report.terminal_plan import planned
from mmcalib.results.memory import Memory
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Combination, Logged, Plan, Price, TriedFix

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (["--model", MODEL, "--gpu", "H1000"], "H1000", "--gpu-memory"),
        (["--model", MODEL, "--gpu", "MI300X"], "MI300X has no CUDA", "--gpu H100-80G"),
        (["--model", MODEL, "--gpu-memory", "24GiB"], "go together", "--capability 8.9"),
        (["--gpu", "L4", "--gpu-memory", "24GiB", "--capability", "8.9"], "one or the other", ""),
        (["--gpu", "L4", "--goal", "fast"], "'fast' is not a goal", "concurrency>=16"),
        (["--gpu", "L4"], "no model is named", "--model MODEL"),
        (["--gpu", "L4", "--config", "none.yaml"], "none.yaml: no such file", ""),
        (["--gpu", "L4", "--log", "none.log"], "none.log: No such file", ""),
    ],
)
def test_a_mistake_is_one_line(words: list[str], says: str, hint: str, cli) -> None:
    ended = cli("plan", *words)
    assert (ended.code, ended.out) == (2, "")
    lines = ended.err.splitlines()
    assert len(lines) <= 2
    assert says in lines[0]
    assert hint in ended.err


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of {total} GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process "
    "has 21.00 GiB memory in use.\n"
)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("nothing of a server\n", "no line of it is of a vLLM server", ""),
        (OOM.format(total="79.19"), "H100-80G", "--gpu A100-80G"),
        (OOM.format(total="66.66"), "66.66GiB, which no known GPU has", "--capability X.Y"),
        (OOM.format(total="31.35"), "no model is named; the log does not say", "--model MODEL"),
        ("INFO: Starting to load model /nowhere/m...\n", "does not say which GPU", "--gpu NAME"),
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
    planned(plan, Console(file=text, width=100, color_system=None, highlight=False))
    return text.getvalue()


def test_a_plan_says_what_lacks_what_helps_and_what_to_add() -> None:
    shown = page(a_plan())
    assert "As it is, it would not start: No available memory for the cache blocks." in shown
    assert "Goal: fits; 2.00 GiB of KV cache lacking" in shown
    assert "reaches it" in shown
    assert "--hint: a trap" in shown
    assert "--refused: not rehearsed: it asserts" in shown
    assert "costs speed: slower" in shown
    assert shown.rstrip().endswith("add to vllm serve: --eager")


def test_a_reached_goal_needs_nothing() -> None:
    plan = a_plan(
        verdict="reached already", memory=ENOUGH, lacking_bytes=0, fixes=[], combination=None
    )
    shown = page(plan)
    assert "The goal is reached already: KV cache 1.00 GiB, 29,127 tokens, 3.56" in shown
    assert "add to vllm serve" not in shown


def test_a_log_with_an_oom_never_has_its_goal_reached_already() -> None:
    oom = ObservedOom("serving", GIB, 0, None, None, None, 0, 0, 0, GIB, 0)
    log = Logged(vllm="", model="", failures=[], notes=[], oom=oom)
    plan = a_plan(verdict="reached already", memory=ENOUGH, fixes=[], combination=None, log=log)
    assert "already" not in page(plan)
    assert "KV cache 1.00 GiB, 29,127 tokens, 3.56" in page(plan)


FALLS_SHORT = CheckResult(
    name="adequately reserved", status="fail", detail="under-reserved by 0.46 GiB", remedy="a cure"
)
HOLDS = CheckResult(
    name="adequately reserved", status="pass", detail="the costliest step, rehearsed"
)


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
    assert mended.rstrip().endswith("add to vllm serve: --eager")
    short = best.model_copy(update={"reserved": FALLS_SHORT})
    shown = page(a_plan(verdict="under-reserved", combination=short))
    assert "no fix of it reserves enough" in shown
    assert "that is with --eager" in shown
    assert "→ a cure" in shown
    assert "add to vllm serve" not in shown


def test_out_of_reach_still_shows_the_best() -> None:
    best = a_plan().combination
    assert best is not None
    best = best.model_copy(update={"reaches": False, "proven": False, "memory": SHORT})
    shown = page(a_plan(verdict="out of reach", combination=best))
    assert "The best there is: not enough" in shown
    assert "did not suffice to know if less would do" in shown


def test_what_a_log_says_cannot_break_the_page() -> None:
    log = Logged(vllm="0.9", model="m", failures=["out of memory\x1b[2J"], notes=["of 0.9"])
    shown = page(a_plan(log=log))
    assert "What the log says\n- out of memory" in shown
    assert "- of 0.9" in shown
    assert "\x1b" not in shown


def test_flags_are_not_broken_within_words_on_eighty_columns() -> None:
    flags = "--max-num-batched-tokens 2048 --gpu-memory-utilization 0.95 --kv-cache-dtype fp8"
    text, plan = io.StringIO(), a_plan(fixes=[tried("x", flags=flags, price="slower prefill")])
    planned(plan, Console(file=text, width=80, color_system=None, highlight=False))
    shown = text.getvalue()
    assert [word for word in flags.split() if word not in shown] == []
    assert "slower prefill" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_less_than_no_room_is_what_lacks() -> None:
    """A KV cache of -1.00 GiB is none."""
    shown = page(a_plan(fixes=[tried("x")]))
    assert "1.00 GiB short" in shown
    assert "-1.00" not in shown


def test_what_else_reaches_the_goal_is_named_by_what_it_spares() -> None:
    best = a_plan().combination
    assert best is not None
    price = Price(name="short", flags="--short", cost="requests", price="shorter")
    other = best.model_copy(update={"fixes": [price], "flags": "--short"})
    shown = page(a_plan(others=[other], kept=["max_model_len=32k"]))
    assert "Goal: fits; keeping max_model_len=32k; 2.00 GiB" in shown
    assert shown.index("Or, to spare speed") < shown.index("costs requests: shorter")
    assert shown.rstrip().endswith("add to vllm serve: --eager")
