"""The summary of a run: 25 lines of 80 columns, the failure first, and nothing hidden."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.checks.catalogue import ASSUMED_COUNT, LARGE_ITEMS, MEMORY_RESERVE, PROCESSING
from mmcalib.checks.check import Check
from mmcalib.report.summary import MOST_LINES, summary
from mmcalib.results.part import CheckResult
from tests.docs.refresh import example
from tests.report.example import calibration
from tests.report.golden import check_golden
from tests.report.hostile import NAMES, named
from tests.report.test_words import with_yours

SERVE = "vllm serve --config out/engine.yaml"


def shown(found: Calibration, width: int = 80, *, colour: bool = False) -> str:
    page = io.StringIO()
    console = Console(
        file=page, width=width, force_terminal=colour, no_color=not colour, legacy_windows=False
    )
    summary(found, console, serve=SERVE, folder="out", seconds=154.2)
    return page.getvalue()


def with_checks(found: Calibration, *checks: Check, **update: Any) -> Calibration:
    results = [*found.checks, *map(CheckResult.from_value, checks)]
    return found.model_copy(update={"checks": results, **update})


def failing() -> Calibration:
    detail = "under-reserved by 0.46 GiB: " + "a step takes more than vLLM reserves " * 9
    failed = Check(MEMORY_RESERVE, "fail", detail, "--max-num-seqs 2\n--allow-under-reserve")
    return with_checks(example(), failed, *MANY, verdict="fail")


def with_audio() -> Calibration:
    """All modalities, every vLLM option given, and more notes than there is room for."""
    found = example()
    sounds = found.corpus.modalities["video"].model_copy(update={"witnesses": 12})
    corpus = found.corpus.model_copy(
        update={"modalities": {**found.corpus.modalities, "audio": sounds}}
    )
    given = [
        found.evidence[0].model_copy(update={"setting": f"an_option_{n}", "label": "given"})
        for n in range(9)
    ]
    evidence = [*found.evidence, *given]
    return with_checks(found, *MANY, corpus=corpus, evidence=evidence)


MANY = [
    Check(check, status, f"{status} " * 60, "do this, or do that " * 9)
    for status in ("skip", "warn")
    for check in (ASSUMED_COUNT.of("image"), ASSUMED_COUNT.of("video"), LARGE_ITEMS, PROCESSING)
]
VARIANTS: dict[str, Callable[[], Calibration]] = {
    "sample": example,
    "no GPU": calibration,
    "failing": failing,
    "audio": with_audio,
    "yours": lambda: with_yours(max_model_len=8192),
    "long names": lambda: named("x" * 300),
}


def test_golden() -> None:
    lines = [line.rstrip() for line in shown(calibration()).splitlines()]
    check_golden("summary.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("found", VARIANTS.values(), ids=VARIANTS)
def test_it_fits_one_screen(found: Callable[[], Calibration]) -> None:
    lines = shown(found()).splitlines()
    assert len(lines) <= MOST_LINES
    assert all(cell_len(line) <= 80 for line in lines)
    assert len({row.index("yes") for row in lines if row.startswith("starts")}) <= 1


def test_a_failure_comes_first_with_what_to_do_and_nothing_to_serve() -> None:
    page = shown(failing())
    _, failed, *rest = page.splitlines()
    assert failed == "FAIL in 154 s at MM041 memory reserve"
    assert "  → --max-num-seqs 2" in rest[:6]
    assert page.count("MM041") == 1
    assert "vllm serve" not in page
    assert "limit_mm_per_prompt" not in page


def test_a_pass_ends_with_the_command_that_serves() -> None:
    *_, verdict, details = shown(example()).splitlines()
    assert verdict == f"PASS in 154 s. Serve:  {SERVE}"
    assert details.startswith("Details: out/report.html")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_neither_widen_nor_colour_it(name: str) -> None:
    text = shown(named(name))
    text.encode("utf-8", errors="strict")
    lines = text.split("\n")
    assert all(cell_len(line) <= 80 for line in lines)
    assert all(char.isprintable() for line in lines for char in line)


def test_names_are_shown_as_they_are_not_as_markup() -> None:
    assert "[bold]x[/bold].png" in shown(named("[bold]x[/bold].png")).replace("\n", "")


@pytest.mark.parametrize("width", [50, 60, 200])
def test_no_width_loses_the_numbers(width: int) -> None:
    flat = shown(calibration(), width).replace("\n", "").replace(" ", "")
    assert all(number in flat for number in ("114,688", "2,538", "1003520", "PASS"))


def test_colour_only_where_there_is_some() -> None:
    assert "\x1b[" not in shown(calibration())
    assert "\x1b[" in shown(calibration(), colour=True)
