"""`mmcalib report`: from a calibration on disk to a report on disk."""

import json
import sys
from pathlib import Path

import pytest

from mmcalib.domain.model import Server
from mmcalib.engine.environment import serve_command, serve_program
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.results.part import CheckResult
from tests.report.example import calibration
from tests.schemas import fits


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
    assert "Report: out/report.html" in said.err
    text = (out / "report.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert serve_command(Path("out/engine.yaml")) in text
    assert cli("report", out / "calibration.json", "--format", "md").code == 0
    assert "## Trade-offs" in (out / "report.md").read_text("utf-8")


def test_without_what_draws_charts_a_line_names_the_extra(cli, out: Path, monkeypatch) -> None:
    assert "mmcalib[report]" not in cli("report").err
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    said = cli("report")
    assert (said.code, said.err.splitlines()[1]) == (
        0,
        'report.html has tables in place of charts: pip install "mmcalib[report]" draws them',
    )
    assert len(cli("report", "--format", "md").err.splitlines()) == 1


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
    printed = cli("report", "--json", "--no-thumbnails", "--redact-paths").out
    fits("report", printed)
    said = json.loads(printed)
    assert said["written"] == "out/report.html"
    assert said["bytes"] == (out / "report.html").stat().st_size
    assert "page-7" not in (out / "report.html").read_text("utf-8")


@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_the_form_is_all_of_standard_output_and_its_use_is_on_the_other(cli, out, form) -> None:
    said = cli("report", "out", "--emit", form)
    assert said.code == 0
    assert said.out == CONFIGURATIONS[form].render(calibration(), serve_program())
    assert CONFIGURATIONS[form].file in said.err
    assert not (out / "report.html").exists()


def test_it_goes_to_a_file_that_json_names(cli, out: Path) -> None:
    said = cli("report", "--emit", "env", "--out", "a b.env", "--json")
    fits("report", said.out)
    size = Path("a b.env").stat().st_size
    assert json.loads(said.out) == {"written": "a b.env", "format": "env", "bytes": size}
    assert "--env-file 'a b.env'" in said.err


@pytest.mark.parametrize(("form", "said"), [("args", True), ("yaml", True), ("env", False)])
def test_how_to_use_it_names_limits_that_the_form_does_not_carry(cli, out, form: str, said) -> None:
    name = "VLLM_MAX_AUDIO_DECODE_DURATION_S"
    server = Server(limits={name: 1200}, given=(name,))
    calibration(server=server).save(out / "calibration.json")
    shown = cli("report", "out", "--emit", form)
    assert (f"{name}=1200 " in shown.err) is said
    assert (f"{name}=1200" in shown.out) is (form != "args")


def test_one_that_failed_is_emitted_by_force_alone_with_a_warning(cli, out: Path) -> None:
    no = CheckResult(name="prompt length", status="fail", detail="too long", remedy="fewer items")
    calibration(verdict="fail", checks=[no]).save(out / "calibration.json")
    said = cli("report", "--emit", "args")
    assert (said.code, said.out) == (3, "")
    assert "prompt length: too long" in said.err
    assert "fewer items" in said.err
    said = cli("report", "--emit", "k8s", "--force")
    assert said.code == 0
    assert said.out.startswith("# The verdict is fail: prompt length")
    assert "warning: this configuration failed its checks" in said.err
