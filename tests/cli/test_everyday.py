"""Everyday commands: what is known by name, and calibrations seen again, alone and side by side."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mmcalib.admission.calibration import Calibration
from mmcalib.cli.app import app
from mmcalib.models import gpus
from mmcalib.models.catalogue import bundled_models
from mmcalib.report.markdown import issue
from tests.conftest import ROOT
from tests.programs import run_python
from tests.report.example import calibration
from tests.report.test_rehearsal_report import one as rehearsed_by
from tests.schemas import fits
from tests.workflows.rehearsals import GIB


def kept(folder: Path, **changed: object) -> Calibration:
    folder.mkdir()
    made = calibration(**changed)
    made.save(folder / "calibration.json")
    return made


def test_a_locale_without_its_characters_ends_nothing(tmp_path: Path) -> None:
    kept(tmp_path / "out")
    bare = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = ("-P", "-m", "mmcalib", "report", "out", "--format", "text")
    env = {**os.environ, **bare, "PYTHONPATH": str(ROOT)}
    done = run_python(*words, cwd=tmp_path, env=env, errors="replace")
    assert done.returncode == 0, done.stderr
    assert "PASS. Serve" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("a/b", "no weights of a/b on this machine, and HF_HUB_OFFLINE is set"),
        ("./b", "./b has no"),
    ],
)
def test_a_server_without_weights_is_refused_in_one_line(cli, tmp_path, model, why: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "engine.yaml").write_text(f"model: {model}\n")
    said = cli("serve", "--config", "engine.yaml", "--", "--port", "1")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"error: {why}")
    assert "\n  try: " in said.err
    assert len(said.err.splitlines()) == 2


def test_the_help_of_run_is_short_and_its_whole_is_one_option_away(cli) -> None:
    command = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    spelled = [[name for name in one.opts if name[:2] == "--"] for one in command.params]
    every = {names[0] for names in spelled if names}
    short = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", cli("run", "--help").out, re.M))
    whole = cli("run", "--help-all")
    assert set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", whole.out, re.M)) == every | {"--help"}
    assert short >= {"--model", "--data", "--requests", "--gpu", "--out", "--help-all"}
    assert len(short) <= 20
    assert (whole.code, whole.err) == (0, "")


def test_gpus(cli) -> None:
    said = cli("list", "gpus")
    every = [line.split()[0] for line in said.out.splitlines()]
    assert every == [gpu.name for gpu in gpus.catalogue_gpus()]
    (line,) = cli("list", "gpus", "4080", "super").out.splitlines()
    assert line.split()[:4] == ["RTX-4080-Super", *line.split()[1:3], "8.9"]
    listed = json.loads(cli("list", "gpus", "h100", "--json").out)
    fits("gpus", listed)
    assert [gpu["capability"] for gpu in listed] == [[9, 0]] * len(listed)
    none = cli("list", "gpus", "voodoo")
    assert (none.out, none.code) == ("", 0)
    assert "--gpu-memory SIZE --capability X.Y" in none.err


def test_models(cli) -> None:
    said = cli("list", "models", "qwen2.5-OMNI")
    assert said.out.splitlines() == [
        "Qwen/Qwen2.5-Omni-3B  image, video, audio",
        "Qwen/Qwen2.5-Omni-7B  image, video, audio",
    ]
    every = cli("list", "models").out.splitlines()
    assert [line.split()[0] for line in every] == [geometry.id for geometry in bundled_models()]
    assert max(map(len, every)) <= 80
    listed = json.loads(cli("list", "models", "glm", "ocr", "--json").out)
    fits("models", listed)
    assert [model["id"] for model in listed] == ["zai-org/GLM-OCR"]
    none = cli("list", "models", "voodoo")
    assert (none.out, none.code) == ("", 0)


def test_the_summary_and_an_issue_are_printed_again(cli, tmp_path: Path) -> None:
    made = kept(tmp_path / "out")
    said = cli("report", str(tmp_path / "out"), "--format", "text")
    assert (said.code, said.err) == (0, "")
    assert "\nPASS." in said.out
    pasted = cli("report", str(tmp_path / "out"), "--format", "issue")
    assert (pasted.code, pasted.out, pasted.err) == (0, issue(made), "")
    file = tmp_path / "summary.txt"
    assert cli("report", str(tmp_path / "out"), "--format", "text", "--out", str(file)).code == 0
    assert file.read_text("utf-8") == said.out


def test_diff_names_what_is_not_the_same(cli, tmp_path: Path) -> None:
    made = kept(tmp_path / "a")
    config = {**made.engine_config, "max_model_len": 4096}
    checks = [c.model_copy(update={"status": "pass"}) for c in made.checks]
    kept(tmp_path / "b", engine_config=config, checks=checks)
    found = json.loads(cli("diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json").out)
    fits("diff", found)
    before = str(made.engine_config["max_model_len"])
    assert found["Settings"] == [["max_model_len", before, "4096"]]
    assert found["Inputs"] == [["verdict", "pass · 1 warning", "pass"]]
    assert {new for _, _, new in found["Checks"]} == {"pass"}
    assert "Memory, tuned" not in found
    said = cli("diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert (said.code, said.err) == (0, "")
    assert "4096" in said.out
    same = cli("diff", str(tmp_path / "a"), str(tmp_path / "a"))
    assert same.out == "no difference in settings, memory or checks\n"


def test_diff_takes_two_rehearsals(cli, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(rehearsed_by(tmp_path).model_dump_json())
    less: dict[str, Any] = {"kv_cache_tokens": None, "max_concurrency": None}
    without = rehearsed_by(tmp_path, vllm="0.33.0", kv_cache_bytes=-GIB, **less)
    new.write_text(without.model_dump_json())
    found = json.loads(cli("diff", str(old), str(new), "--json").out)
    fits("diff", found)
    assert found == {
        "Inputs": [["starts", "True", "False"], ["vllm", "0.32.0", "0.33.0"]],
        "Memory": [
            ["KV cache", "10.50 GiB", "−1.00 GiB"],
            ["KV cache, tokens", "305,832", "—"],
            ["full-length requests at once", "9.33", "—"],
        ],
    }
    assert cli("diff", str(old), str(old)).out == "no difference in memory and encoder budget\n"
    kept(tmp_path / "out")
    mixed = cli("diff", str(old), str(tmp_path / "out"))
    assert mixed.code == 2
    assert "old.json is not a calibration" in mixed.err


def test_a_report_to_standard_output(cli, tmp_path: Path, working_folder: Path) -> None:
    """It wrote a file called `-`."""
    kept(tmp_path / "out")
    said = cli("report", str(tmp_path / "out"), "--format", "md", "--out", "-")
    assert said.out.startswith("# Qwen/Qwen2.5-VL-3B-Instruct: vLLM tuned")
    assert said.err == ""
    assert list(working_folder.iterdir()) == []
    emitted = cli("report", str(tmp_path / "out"), "--emit", "args", "--out", "-")
    assert emitted.out == cli("report", str(tmp_path / "out"), "--emit", "args").out != ""
    assert cli("report", str(tmp_path / "out"), "--out", "-", "--json").code == 2
