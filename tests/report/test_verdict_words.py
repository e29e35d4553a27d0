"""How a verdict is said: a pass with its assumptions and warnings, wherever it is shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.checks import catalogue as ids
from mmcalib.checks.catalogue import CheckId
from mmcalib.checks.check import Check, Status
from mmcalib.report.markdown import markdown
from mmcalib.report.report import Report, html
from mmcalib.report.summary import summary
from mmcalib.report.terminal import failure_line
from mmcalib.results.part import CheckResult, verdict_words
from tests.report.example import SERVE, calibration


def result(check: CheckId, status: Status) -> CheckResult:
    found = Check(check, status, f"{check.name} in detail", "--flag N")
    return CheckResult.from_value(found)


ASSUMED = [result(ids.ASSUMED_COUNT.of("image"), "warn"), result(ids.ASSUMED_BATCH, "warn")]
OTHERS = [
    *(result(ids.REPLAY, "warn"), result(ids.ADMITTED, "pass"), result(ids.ENGINE_START, "skip")),
    # It moves no setting, and is no part of the verdict.
    result(ids.ASSUMED_LOAD, "warn"),
]


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
    assert "PASS, on 2 assumptions. Serve" in page.getvalue()
    assert f"**Verdict: {words}.**" in markdown(shown, SERVE)
    pill = f'<p class="verdict warn">Verdict: <a href="#notes">{words}</a></p>'
    assert pill in html(Report(shown, SERVE, thumbnails=False))
    assert words in repr(shown)


def test_check_says_why_its_calibration_failed_and_nothing_else_of_it() -> None:
    assert failure_line(on_assumptions()) == ""
    failed = [result(ids.PROMPT_LENGTH, "fail"), *OTHERS]
    known = calibration().model_copy(update={"checks": failed, "verdict": "fail"})
    assert failure_line(known).startswith("the calibration failed at MM027 prompt length: ")
