from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mmcalib import text as wording
from mmcalib.admission.calibration import Calibration
from mmcalib.checks import catalogue as ids
from mmcalib.checks.catalogue import CheckId
from mmcalib.checks.check import Check, Status
from mmcalib.cli.output import finish
from mmcalib.cli.results import ResultOptions
from mmcalib.options.option import make_options
from mmcalib.report import rows as words
from mmcalib.report.markdown import markdown
from mmcalib.report.report import Report, html, md
from mmcalib.report.summary import summary
from mmcalib.report.terminal import failure_line
from mmcalib.results.calibration import YourConfiguration, group_evidence
from mmcalib.results.memory import Memory, TrafficFigures
from mmcalib.results.part import CheckResult, verdict_words
from mmcalib.text import MIB
from tests.builders import some
from tests.report.example import SERVE, calibration, changed
from tests.report.golden import printed


@given(st.floats(0, 1))
def test_only_nothing_is_0_and_only_all_is_100(value: float) -> None:
    assert (wording.share(value) in ("0%", "0.0%")) == (value == 0)
    assert (wording.share(value) in ("100%", "100.0%")) == (value == 1)


def test_numbers_have_separators_and_absence_a_dash() -> None:
    assert (wording.number(114688), wording.number(None)) == ("114,688", "—")
    sizes = [wording.gib(nbytes) for nbytes in (970827468, None, 0)]
    assert sizes == ["0.90 GiB", "—", "0.00 GiB"]


@given(st.text())
def test_plain_text_is_printable_and_leaves_good_text_alone(text: str) -> None:
    plain = wording.printable(text)
    assert all(char.isprintable() for char in plain)
    assert wording.printable(plain) == plain


def test_neighbours_with_one_reason_are_said_once() -> None:
    groups = group_evidence(calibration().evidence)
    assert [settings for settings, _, _ in groups][:2] == [
        ["limit_mm_per_prompt.image.count"],
        ["limit_mm_per_prompt.image.width", "limit_mm_per_prompt.image.height"],
    ]
    assert groups[1][1] == ["1316", "756"]
    assert sum(len(settings) for settings, _, _ in groups) == len(calibration().evidence)


def with_yours(**default_config: object) -> Calibration:
    made = calibration()
    budget = made.budget.default.model_copy(update={"max_num_batched_tokens": 8192})
    diff = "--- a.yaml\tyours\n+++ a.yaml\ttuned\n@@ -1 +1 @@\n-a: 1\n+a: \u202e2\n"
    config = {"mm_processor_cache_gb": 2}
    return calibration(
        default_config=default_config,
        yours=YourConfiguration(file="a.yaml", engine_config=config, diff=diff),
        budget=made.budget.model_copy(update={"yours": budget}),
        memory=made.memory.model_copy(update={"yours": Memory(kv_cache_tokens=4242)}),
    )


def test_yours_is_between_the_default_and_the_tuned_one() -> None:
    found = with_yours(max_model_len=8192)
    assert [c.name for c in words.columns(found)] == ["without limits", "yours", "tuned"]
    assert [c.name for c in words.columns(calibration())] == ["vLLM defaults", "tuned"]
    rows = {what: cells for what, *cells in words.reservation_rows(found)}
    assert rows["max_num_batched_tokens"] == ["2,048", "8,192", "2,538", "computed"]
    assert rows["KV cache, tokens"][:3] == ["—", "4,242", "—"]
    assert rows["processor cache, hit rate"][1] == "2 GiB"


def test_a_configuration_that_reserves_too_little_or_is_refused_has_a_note() -> None:
    made = with_yours()
    assert (words.yours_note(made), words.yours_note(calibration())) == ("", "")
    short = changed(made, "budget.yours", profiled_tokens=324, worst_step_tokens=16_384)
    said = words.yours_note(short)
    assert said.startswith("Your configuration reserves 324 of the 16,384 tokens")
    refused = changed(made, "yours", refused="no such dtype")
    assert words.yours_note(refused).endswith("no such dtype.")


def test_every_report_has_the_three_columns_and_the_diff(tmp_path: Path) -> None:
    made = with_yours()
    assert "4,242" in printed(partial(summary, made), width=100)
    report = Report(made, "vllm serve", thumbnails=False)
    for text in (md(report), html(report)):
        assert "4,242" in text
        assert "-a: 1\n+a: \\u202e2\n" in text
    hidden = Report(made, "vllm serve", thumbnails=False, redact_paths=True)
    assert "a.yaml" not in md(hidden) + html(hidden)
    how = {"quiet": True, "no_thumbnails": True}
    finish(made, tmp_path, Console(quiet=True), make_options(ResultOptions, how))
    assert (tmp_path / "engine.diff").read_text("utf-8") == some(made.yours).diff


def result(check: CheckId, status: Status) -> CheckResult:
    return CheckResult.from_value(Check(check, status, f"{check.name} in detail", "--flag N"))


ASSUMED = [result(ids.ASSUMED_COUNT.of("image"), "warn"), result(ids.ASSUMED_BATCH, "warn")]
OTHERS = [
    *(result(ids.REPLAY, "warn"), result(ids.ADMITTED, "pass"), result(ids.ENGINE_START, "skip")),
    # It moves no setting, so the verdict does not depend on it.
    result(ids.ASSUMED_LOAD, "warn"),
]


@pytest.mark.parametrize(
    ("verdict", "checks", "words"),
    [
        ("pass", OTHERS[1:3], "pass"),
        ("pass", OTHERS, "pass · 2 warnings"),
        ("pass", ASSUMED[:1], "pass, with 1 assumption"),
        ("pass", [*ASSUMED, *OTHERS], "pass, with 2 assumptions · 2 warnings"),
        ("fail", [*ASSUMED, *OTHERS], "fail"),
    ],
)
def test_words(verdict: str, checks: list[CheckResult], words: str) -> None:
    assert verdict_words(verdict, checks) == words


def on_assumptions() -> Calibration:
    return calibration(checks=[*ASSUMED, *OTHERS])


def test_they_are_the_same_wherever_the_verdict_is_shown() -> None:
    words, shown = "pass, with 2 assumptions · 2 warnings", on_assumptions()
    assert "PASS, with 2 assumptions. Serve" in printed(partial(summary, shown), width=96)
    assert f"**Verdict: {words}.**" in markdown(shown, SERVE)
    pill = f'<p class="verdict warn">Verdict: <a href="#notes">{words}</a></p>'
    assert pill in html(Report(shown, SERVE, thumbnails=False))
    assert words in repr(shown)


def test_check_says_why_its_calibration_failed_and_nothing_else_of_it() -> None:
    assert failure_line(on_assumptions()) == ""
    failed = [result(ids.PROMPT_LENGTH, "fail"), *OTHERS]
    known = calibration(checks=failed, verdict="fail")
    assert failure_line(known).startswith("the calibration failed at MM027 prompt length: ")


def test_what_a_gain_costs_under_load_stands_beside_it() -> None:
    """A smaller reserve that leaves enough is no loss; one that leaves nothing is."""
    served = some(calibration().traffic)

    def found(left_mib: int, preemptions: int) -> TrafficFigures:
        reserved = served.calibrated.peak_bytes + left_mib * MIB
        left = {"reserved_bytes": reserved, "margin_bytes": left_mib * MIB}
        return served.calibrated.model_copy(update={**left, "preemptions": preemptions})

    assert words.load_cells(found(780, 12), found(200, 12)) == ("yes", "yes")
    assert words.load_cells(found(780, 12), found(20, 29)) == (
        "yes, 0.76 GiB left, 12 preempted",
        "yes, 0.02 GiB left, 29 preempted",
    )
    assert words.load_cells(found(20, 3), found(780, 1)) == ("yes", "yes")
    assert words.load_cells(None, found(20, 3)) == ("—", "yes")
