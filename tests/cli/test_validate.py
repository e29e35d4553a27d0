"""`mmcalib validate` before the engine, and its page on the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mmcalib.report.terminal_plan import validated
from mmcalib.results.memory import EncoderBudget, Memory
from mmcalib.results.part import CheckResult
from mmcalib.results.validation import ValidatedBudgets, ValidatedMemory, Validation

GIB = 1 << 30


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--config", "no.yaml"], "--config no.yaml: no such file"),
        (["--config", "c.yaml", "--validate", "none"], "--validate none: no such choice"),
        (["--config", "c.yaml", "--startup-budget", "-1"], "--startup-budget must be a number"),
        (["--config", "c.yaml", "--gpu", "Abacus"], "Abacus"),
        ([], "mmcalib validate engine.yaml"),
    ],
)
def test_mistakes_end_before_the_engine(
    cli: Any, tmp_path: Path, words: list[str], says: str
) -> None:
    (tmp_path / "c.yaml").write_text("model: a/b\n")
    ended = cli("validate", *words)
    assert ended.code == 2
    assert says in ended.err
    assert ended.out == ""


def a_validation(**changes: Any) -> Validation:
    budget = EncoderBudget(
        encoder_budget_tokens=16_384,
        max_tokens_per_item={"image": 16_384},
        items_per_batch={"image": 1},
        profiled_modality="image",
        profiled_items=1,
        profiled_tokens=324,
        worst_step_tokens=16_384,
        adequacy=0.0198,
        max_num_batched_tokens=2048,
    )
    found = Validation(
        checks=[
            CheckResult(name="config round trip", status="pass", detail="all 3 arrive"),
            CheckResult(name="image size hint", status="fail", detail="a trap", remedy="drop it"),
            CheckResult(name="adequately reserved", status="fail", detail="no", remedy="drop it"),
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


def page(validation: Validation) -> str:
    out = io.StringIO()
    validated(validation, Console(file=out, width=100, color_system=None, highlight=False))
    return out.getvalue()


def test_the_page_says_what_it_is_of_and_what_is_wrong_first() -> None:
    shown = page(a_validation())
    first = next(line for line in shown.splitlines() if line)
    assert first == "c.yaml --max-num-seqs 4: Qwen/Qwen2.5-VL-3B-Instruct (bundled) on L4"
    assert "limit_mm_per_prompt  {image: {count: 1, width: 512}}" in shown
    assert "KV cache on L4" in shown
    assert shown.index("image size hint: a trap") < shown.index("config round trip: all 3 arrive")
    assert shown.count("→ drop it") == 2, "what is short is said again"
    assert shown.rstrip().endswith("verdict: fail")


def test_a_file_that_cannot_be_read_has_a_page_too() -> None:
    nothing = a_validation(
        engine_config=None, budget=None, memory=None, source=None, model="", gpu="", tool={},
        items="none", flags=[], config="c\x1b[2J.yaml",
    )  # fmt: skip
    shown = page(nothing)
    assert "\x1b" not in shown
    assert "What vLLM" not in shown


def test_a_long_remedy_is_said_once() -> None:
    remedy = "mm-processor-kwargs: {images_kwargs: {size: {longest_edge: 1003520}}} or no hint"
    checks = [
        check.model_copy(update={"remedy": remedy}) if check.status == "fail" else check
        for check in a_validation().checks
    ]
    shown = page(a_validation(checks=checks))
    assert "→ mm-processor-kwargs" in shown
    assert shown.count("→ the same") == sum(check.status == "fail" for check in checks) - 1 > 0
