"""`mmcalib report`: from a calibration on disk to a report on disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mmcalib.cli.command import none_of
from mmcalib.report.formats import REPORT_NAMES
from tests.report.example import calibration


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a finished run."""
    folder = tmp_path / "out"
    folder.mkdir()
    calibration().save(folder / "calibration.json")
    return folder


def test_the_report_stands_beside_the_calibration_and_is_made_anew(cli, out: Path) -> None:
    (out / "report.html").write_text("old")
    said = cli("report")
    assert said.code == 0
    assert said.out == ""
    assert "written to out/report.html" in said.err
    text = (out / "report.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "vllm serve --config out/engine.yaml" in text


def test_without_what_draws_charts_a_line_names_the_extra(
    cli, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "mmcalib[report]" not in cli("report").err
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    said = cli("report")
    assert (said.code, said.err.splitlines()[1]) == (
        0,
        'report.html has tables in place of charts: pip install "mmcalib[report]" draws them',
    )
    assert len(cli("report", "--format", "md").err.splitlines()) == 1


def test_markdown_is_the_report_that_the_run_wrote(cli, out: Path) -> None:
    assert cli("report", out / "calibration.json", "--format", "md").code == 0
    assert "## The frontier" in (out / "report.md").read_text("utf-8")


def test_another_file_is_not_overwritten_by_accident(cli, out: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    said = cli("report", "out", "--out", mine)
    assert said.code == 2
    assert "--force" in said.err
    assert mine.read_text() == "mine"
    assert cli("report", "out", "--out", mine, "--force", "--quiet").err == ""
    assert mine.read_text("utf-8") != "mine"


def test_json_says_what_was_written(cli, out: Path) -> None:
    said = json.loads(cli("report", "--json", "--no-thumbnails", "--redact-paths").out)
    assert said["written"] == "out/report.html"
    assert said["bytes"] == (out / "report.html").stat().st_size
    assert "page-7" not in (out / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "cannot read nowhere"),
        (["out", "--format", "pdf"], none_of(REPORT_NAMES)),
        (["out", "--out", "."], "is a folder"),
    ],
)
def test_mistakes_are_one_line_and_the_next_command(
    cli, out: Path, words: list[str], complaint: str
) -> None:
    said = cli("report", *words, "--force")
    assert said.code == 2
    assert complaint in said.err
    assert "  try: " in said.err
    assert len(said.err.splitlines()) == 2
