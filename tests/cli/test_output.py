"""The folder of results: what is in it after each step, and how the command ends."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmcalib.admission.calibration import Calibration
from mmcalib.checks.catalogue import RUN_COMPLETION
from mmcalib.cli.output import FILES, OTHER_FORMS, check_output_dir, finish, save
from mmcalib.cli.results import ResultOptions
from mmcalib.domain.items import Skipped
from mmcalib.domain.model import Server
from mmcalib.engine.environment import serve_command
from mmcalib.errors import UsageError, VerdictError
from mmcalib.options.option import make_options
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.results.part import CheckResult
from mmcalib.workflows.run.session import RunOutcome
from tests.report.example import calibration, changed
from tests.report.golden import printed
from tests.report.hostile import NAMES, named


def leave(found: Calibration, out: Path, *, command: Sequence[str] = (), **how: Any) -> str:
    options = make_options(ResultOptions, how)
    return printed(lambda console: finish(found, out, console, options, command=command))


def failed() -> Calibration:
    first, second, *_ = calibration().checks
    no = second.model_copy(update={"status": "fail", "remedy": "--sample 99"})
    return calibration(verdict="fail", checks=[first, no])


def test_claiming_makes_nothing(tmp_path: Path) -> None:
    """The job may still turn out to be impossible."""
    check_output_dir(tmp_path / "a" / "b", force=False)
    assert os.listdir(tmp_path) == []
    (tmp_path / "a").mkdir()
    check_output_dir(tmp_path / "a", force=False)


def test_what_an_interrupted_run_left_needs_no_force(tmp_path: Path) -> None:
    (tmp_path / "skipped.jsonl").touch()
    check_output_dir(tmp_path, force=False)
    unfinished = CheckResult(name=RUN_COMPLETION.name, status="fail", detail="not at its end")
    calibration(checks=[unfinished]).save(tmp_path / "calibration.json")
    check_output_dir(tmp_path, force=False)
    calibration().save(tmp_path / "calibration.json")
    with pytest.raises(UsageError, match="is not empty"):
        check_output_dir(tmp_path, force=False)
    (tmp_path / "calibration.json").unlink()
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match="is not empty"):
        check_output_dir(tmp_path, force=False)


def test_the_first_result_takes_the_place_of_earlier_ones(tmp_path: Path) -> None:
    for name in (*FILES, *OTHER_FORMS, "mine.txt"):
        (tmp_path / name).write_text("old")
    save(RunOutcome(skipped=[Skipped("a.jpg", "truncated")]), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["mine.txt", "skipped.jsonl"]
    assert json.loads((tmp_path / "skipped.jsonl").read_text())["path"] == "a.jpg"
    save(RunOutcome(calibration=calibration()), tmp_path)
    assert Calibration.load(tmp_path / "calibration.json") == calibration()


def test_a_good_end_writes_the_config_and_says_in_one_line_how_to_serve(tmp_path: Path) -> None:
    out = tmp_path / ("x" * 90)
    out.mkdir()
    said = leave(calibration(), out)
    assert yaml.safe_load((out / "engine.yaml").read_text())["max-num-batched-tokens"] == 2538
    assert "\nPASS" in said
    serve = serve_command(out / "engine.yaml")
    assert f"\nServe:  {serve}\n" in said
    for file in FILES[:1] + FILES[2:4]:
        assert serve in (out / file).read_text(), file
    assert "engine.yaml" in (out / "report.md").read_text()


LENGTH = "VLLM_MAX_AUDIO_DECODE_DURATION_S"


def with_server(*given: str, **needed: int) -> Calibration:
    server = Server(limits={LENGTH: 1200}, given=given)
    return calibration(server=server, needed=needed)


def test_items_that_the_server_refuses_come_with_the_command_that_includes_them(tmp_path) -> None:
    """The variables are not set behind anybody's back: limits were derived without the items."""
    refusing = with_server(**{LENGTH: 1800})
    words = ("run", "--data", "my media", "--emit", "k8s", "--", "--max-num-seqs", "4")
    said = leave(refusing, tmp_path, command=words, emit=["k8s"])
    (line,) = [line for line in said.splitlines() if LENGTH in line]
    again = "mmcalib run --data 'my media' --emit k8s --force -- --max-num-seqs 4"
    assert line.endswith(f": {LENGTH}=1800 {again}")
    assert LENGTH not in leave(calibration(), tmp_path, command=words)
    forced = leave(refusing, tmp_path, command=("run", "--out", "k8s", "--force"), force=True)
    assert f"{LENGTH}=1800 mmcalib run --out k8s --force --emit env\n" in forced


def test_limits_that_were_raised_for_the_run_stand_before_the_server(tmp_path: Path) -> None:
    """A shell without them would start a server that refuses what was calibrated for."""
    said = leave(with_server(LENGTH), tmp_path)
    assert f"Serve:  {LENGTH}=1200 " in said
    with_limit = f"# Serve with: {LENGTH}=1200 {serve_command(tmp_path / 'engine.yaml')}"
    assert with_limit in (tmp_path / "engine.yaml").read_text()


def test_a_failed_verdict_writes_no_config_and_ends_with_3(tmp_path: Path) -> None:
    with pytest.raises(VerdictError, match=r"at MM007 blank items cost the same$") as caught:
        leave(failed(), tmp_path)
    assert (caught.value.exit_code, caught.value.hint) == (3, "")
    with pytest.raises(VerdictError, match=r"at MM007 .*: 18 real items") as caught:
        leave(failed(), tmp_path, quiet=True)
    assert caught.value.hint == "--sample 99"
    assert not (tmp_path / "engine.yaml").exists()
    assert "No configuration was written" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("name", ["a", NAMES["not utf-8"]], ids=["usual", "not-utf-8"])
def test_json_is_the_document_and_all_of_stdout(tmp_path: Path, capsys, name: str) -> None:
    leave(named(name), tmp_path, as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out)["model"]["id"] == name
    assert json.loads(said.out) == json.loads(named(name).to_json())
    assert said.err == ""


def test_strict_says_no_where_anything_was_skipped(tmp_path: Path) -> None:
    with pytest.raises(VerdictError, match="--strict: 2 files or requests were skipped") as caught:
        leave(calibration(), tmp_path, strict=True)
    assert "skipped.jsonl" in caught.value.hint
    assert (tmp_path / "engine.yaml").exists()
    leave(changed(calibration(), "corpus", skipped=0), tmp_path, strict=True)


def test_names_of_any_kind_reach_every_file(tmp_path: Path) -> None:
    name = "/".join(NAMES.values())
    save(RunOutcome(calibration=named(name), skipped=[Skipped(name, name)]), tmp_path)
    leave(named(name), tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(FILES)
    for file in FILES:
        (tmp_path / file).read_bytes().decode("utf-8", errors="strict")


def test_a_run_writes_the_forms_beside_the_file(tmp_path: Path) -> None:
    leave(calibration(), tmp_path, quiet=True, emit=["args", "yaml", "python", "args"])
    assert (tmp_path / "engine.args").read_text() == CONFIGURATIONS["args"].render(calibration())
    assert (tmp_path / "engine.py").exists()
    assert not (tmp_path / "engine.env").exists()
