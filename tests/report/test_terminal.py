"""The summary of a run, 25 lines of 80 columns, and the table of several models and GPUs."""

import io
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.checks.catalogue import ASSUMED_COUNT, LARGE_ITEMS, MEMORY_RESERVE, PROCESSING
from mmcalib.checks.check import Check
from mmcalib.domain.model import Retention
from mmcalib.errors import VerdictError
from mmcalib.report.summary import MOST_LINES, summary
from mmcalib.report.terminal import print_comparison
from mmcalib.results.calibration import ComparedRun, Comparison
from mmcalib.results.part import CheckResult
from tests.docs.refresh import example
from tests.report.example import SERVE, calibration, changed
from tests.report.golden import check_golden, printed
from tests.report.hostile import NAMES, named
from tests.report.test_words import with_yours


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
    modalities = {**found.corpus.modalities, "audio": sounds}
    corpus = found.corpus.model_copy(update={"modalities": modalities})
    given = [
        found.evidence[0].model_copy(update={"setting": f"an_option_{n}", "label": "given"})
        for n in range(9)
    ]
    return with_checks(found, *MANY, corpus=corpus, evidence=[*found.evidence, *given])


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
    "many tokens": lambda: changed(example(), "memory.default", kv_cache_tokens=12_591_615),
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
    starts = [row for row in lines if row.startswith("starts")]
    assert len({row.index("yes") for row in starts}) <= 1
    assert all(row.rstrip()[-2:] == " c" for row in starts)


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


def test_a_remedy_is_shown_where_not_all_settings_are() -> None:
    found = with_audio()
    lower = {"setting": "gpu_memory_utilization", "value": 0.913, "label": "rehearsed"}
    evidence = [*found.evidence, found.evidence[0].model_copy(update=lower)]
    page = shown(found.model_copy(update={"evidence": evidence}))
    assert re.search(r"^gpu_memory_utilization +0\.913 .*r$", page, re.MULTILINE)
    # The cap of an item goes before the limits of a request.
    assert re.search(
        r"^videos…longest_edge .*\nlimit_mm_per_prompt .*\nand 4 more +max_", page, re.MULTILINE
    )


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


FIGURES = {"kv_cache_tokens": 291_504, "kv_cache_bytes": 10_746_336_502, "max_concurrency": 8.9}


def rehearsed() -> Calibration:
    """The example as it would be with a GPU."""
    known = {**FIGURES, "starts": True, "label": "rehearsed"}
    return changed(calibration(), "memory.calibrated", **known)


def test_an_assumed_count_is_labelled_assumed_and_notes_are_counted_as_in_the_report() -> None:
    found = calibration()
    image = {"label": "assumed", "reason": "one per prompt: no requests"}
    evidence = [
        one.model_copy(update=image) if one.setting == "limit_mm_per_prompt.image.count" else one
        for one in found.evidence
    ]
    page = shown(with_checks(found, *MANY, evidence=evidence), width=120)
    assert re.search(r"^limit_mm_per_prompt .* one per prompt: no requests +a$", page, re.M)
    assert "\n4 skipped checks, 2 assumptions, 3 warnings (see mmcalib list checks)" in page
    assert "\nPASS in 154 s, with 2 assumptions." in page


def row(**changed: object) -> ComparedRun:
    return ComparedRun.of(rehearsed().model_copy(update=changed), "L4", "m-L4")


def table(*runs: ComparedRun, width: int = 80) -> list[str]:
    found = Comparison(mmcalib="1", runs=list(runs))
    return printed(partial(print_comparison, found), width).strip().splitlines()


def test_a_comparison_ends_with_the_smallest_card_that_serves_all() -> None:
    small, large = ({"total_bytes": size << 30, "starts": True} for size in (22, 44))
    half = row().model_copy(update={**small, "gpu": "L4", "serves_whole": False})
    whole = half.model_copy(update={**large, "gpu": "L40S", "serves_whole": True})
    larger = whole.model_copy(update={"gpu": "H200", "total_bytes": 99 << 30})
    best = "The smallest card that serves the corpus whole: L40S, with Qwen2.5-VL-3B-Instruct."
    assert table(half, larger, whole)[-1] == best
    assert table(half)[-1] == "No card serves the corpus whole."
    assert "card" not in table(half, larger.model_copy(update={"starts": None}))[-1]
    assert not row().serves_whole, "one request is rejected"
    assert row(traffic=None).serves_whole
    priced = whole.model_copy(update={"price_per_h": 1.9, "max_concurrency": 50.0})
    head, first, second, *_ = table(priced, half)
    assert (head.split()[-1], first.split()[-1], second.split()[-1]) == ("each/h", "0.0380", "—")


def test_a_row_has_the_figures_of_its_calibration() -> None:
    found = row()
    assert (found.model, found.gpu, found.folder) == (calibration().model.id, "L4", "m-L4")
    assert (found.verdict, found.starts, found.problem) == ("pass", True, "")
    assert {name: getattr(found, name) for name in FIGURES} == FIGURES
    assert (found.max_num_batched_tokens, found.max_model_len) == (2538, 128000)
    late = row(memory=changed(rehearsed().memory, "calibrated", starts=False))
    assert late.starts is False, "it runs out of memory after the KV cache"


def test_without_a_gpu_nothing_is_said_of_memory() -> None:
    found = ComparedRun.of(rehearsed(), None, "m")
    assert (found.starts, found.kv_cache_tokens, found.max_concurrency) == (None, None, None)
    by_formula = ComparedRun.of(calibration(), "L4", "m-L4")
    assert by_formula.starts is None, "it was not rehearsed"


def test_detail_is_the_mean_over_all_items() -> None:
    corpus = calibration().corpus
    image, video = corpus.modalities["image"].items, corpus.modalities["video"].items
    halved = changed(corpus, "modalities.video", kept=Retention(video, 0.5, 0.1, "v"))
    assert row(corpus=halved).detail_kept == pytest.approx((image + video / 2) / (image + video))


def test_a_failed_check_and_an_early_end_say_why() -> None:
    no = calibration().checks[1].model_copy(update={"status": "fail", "remedy": "--sample 9"})
    failed = row(verdict="fail", checks=[no])
    assert (failed.problem, failed.remedy) == (f"{no.name}: {no.detail}", "--sample 9")
    error = VerdictError("does not fit", hint="a larger --gpu")
    ended = ComparedRun.from_error(error, "a/b", "T4", "b-T4")
    assert (ended.verdict, ended.starts, ended.remedy) == ("fail", False, "a larger --gpu")


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_names_who_fails(width: int) -> None:
    error = VerdictError("does not fit", hint="a larger --gpu")
    failed = ComparedRun.from_error(error, "a/b", "T4", "b-T4")
    head, first, second, *rest = table(row(), failed, width=width)
    assert max(map(len, (head, first, second))) <= width
    assert " ".join(head.split()) == "model GPU starts context KV tokens KV cache at once detail"
    assert first.split()[1:3] == ["L4", "yes"]
    assert first.split()[3] == "128,000"
    assert second.split() == ["b", "T4", "no", "—", "—", "—", "—", "—"]
    assert rest[-3:-1] == ["b-T4 failed: does not fit", "  try: a larger --gpu"]
