"""How a verdict is said: a pass with its assumptions and warnings, wherever it is shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.checks.check import Status
from mmcalib.report.markdown import markdown
from mmcalib.report.report import Report, html
from mmcalib.report.terminal import failure_line, summary
from mmcalib.results.part import CheckResult, verdict_words
from tests.report.example import SERVE, calibration


def result(name: str, status: Status) -> CheckResult:
    return CheckResult(name=name, status=status, detail=f"{name} in detail", remedy="--flag N")


ASSUMED = [result("assumed image count", "warn"), result("assumed step size", "warn")]
OTHERS = [result("replay", "warn"), result("items admitted", "pass"), result("x", "skip")]


@pytest.mark.parametrize(
    ("verdict", "checks", "words"),
    [
        ("pass", OTHERS[1:], "pass"),
        ("pass", OTHERS, "pass · 1 warning"),
        ("pass", ASSUMED[:1], "pass, on 1 assumption"),
        ("pass", [*ASSUMED, *OTHERS], "pass, on 2 assumptions · 1 warning"),
        ("fail", [*ASSUMED, *OTHERS], "fail"),
    ],
)
def test_words(verdict: str, checks: list[CheckResult], words: str) -> None:
    assert verdict_words(verdict, checks) == words


def on_assumptions() -> Calibration:
    return calibration().model_copy(update={"checks": [*ASSUMED, *OTHERS]})


def test_they_are_the_same_wherever_the_verdict_is_shown() -> None:
    words, shown = "pass, on 2 assumptions · 1 warning", on_assumptions()
    page = io.StringIO()
    summary(shown, Console(file=page, width=96, color_system=None))
    assert page.getvalue().splitlines()[-1] == f"verdict: {words}"
    assert f"**Verdict: {words}.**" in markdown(shown, SERVE)
    pill = f'<p class="verdict warn">Verdict: <a href="#checks">{words}</a></p>'
    assert pill in html(Report(shown, SERVE, thumbnails=False))
    assert words in repr(shown)


def test_check_says_why_its_calibration_failed_and_nothing_else_of_it() -> None:
    assert failure_line(on_assumptions()) == ""
    failed = [result("prompts fit", "fail"), *OTHERS]
    known = calibration().model_copy(update={"checks": failed, "verdict": "fail"})
    assert failure_line(known) == "the calibration failed: prompts fit: prompts fit in detail"
