from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mmcalib.cli.app import app

ROOT = Path(__file__).resolve().parent.parent.parent
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help_and_every_command_an_example(name: str, cli) -> None:
    assert [option.opts for option in COMMANDS[name].params if not option.help] == []
    said = cli(name, "--help")
    assert said.code == 0
    assert f"Example: mmcalib {name}" in said.out
    assert said.err == ""
    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_spelled_with_dashes_and_their_help_is_a_sentence(name: str) -> None:
    for option in COMMANDS[name].params:
        assert all(spelling == spelling.lower() and "_" not in spelling for spelling in option.opts)
        assert option.help.endswith("."), option.opts


def test_the_root_shows_its_commands(cli) -> None:
    said = cli("--help")
    assert said.code == 0
    listed = re.findall(r"^  ([a-z]+)  ", said.out.partition("Commands:")[2], re.M)
    assert listed == [name for name in COMMANDS if name != "serve"]
    assert set(COMMANDS) >= {"run", "list"}


def test_the_root_has_an_example(cli) -> None:
    assert "Example: mmcalib run" in cli("--help").out


def test_the_defaults_of_the_command_are_those_of_the_library() -> None:
    from mmcalib.cli.run import run
    from mmcalib.derive.policy import Policy
    from mmcalib.workflows.run.job import Job

    shown = {name: p.default for name, p in inspect.signature(run).parameters.items()}
    job, policy = Job(model="m", data=()), Policy()
    assert shown["validate"] == job.validate
    assert shown["startup_budget_s"] == job.startup_budget_s
    assert shown["sample"] == job.sample
    said = {parameter.name: parameter.help for parameter in COMMANDS["run"].params}
    assert f"default: {policy.text_reserve_tokens}." in said["text_reserve_tokens"]
    assert f"{policy.prefer} (default):" in said["prefer"]
    assert f"{policy.coverage:g} by default" in said["coverage"]
    words = {"text_reserve_tokens", "prefer", "coverage", "max_model_len", "media_io_kwargs"}
    assert [shown[name] for name in sorted(words)] == [None] * len(words)


def test_version(cli) -> None:
    from mmcalib import __version__

    said = cli("--version")
    assert (said.code, said.out, said.err) == (0, f"mmcalib {__version__}\n", "")


def test_python_m_mmcalib_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mmcalib", "run", "--model", "m"],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: nothing to calibrate for\n  try: --data DIR or --requests FILE.jsonl\n"
    )


def test_help_and_version_may_be_typed_as_commands(cli) -> None:
    assert cli("help", "run").out == cli("run", "--help").out
    assert cli("help").out == cli("--help").out
    assert cli("version").out == cli("--version").out
