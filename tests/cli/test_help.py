"""Completion, asked as the shells ask it, and the help that a first-time user reads."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mmcalib.cli.app import app
from mmcalib.limits.policy import Policy
from tests.programs import run_program

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_sentence_of_help_and_every_command_an_example(name: str, cli) -> None:
    for option in COMMANDS[name].params:
        assert all(spelling == spelling.lower() and "_" not in spelling for spelling in option.opts)
        assert (option.help or "").endswith("."), option.opts
    said = cli(name, "--help")
    assert said.code == 0
    assert f"Example: mmcalib {name}" in said.out
    assert said.err == ""
    assert max(map(len, said.out.splitlines())) <= 80


def test_the_root_shows_its_commands(cli) -> None:
    said = cli("--help")
    assert said.code == 0
    assert re.findall(r"^  ([a-z]+)  ", said.out.partition("Commands:")[2], re.M) == list(COMMANDS)
    assert set(COMMANDS) >= {"run", "serve"}


def test_the_defaults_of_the_command_are_those_of_the_library() -> None:
    options = {option.name: option for option in COMMANDS["run"].params}
    policy, said = Policy(), {name: option.help for name, option in options.items()}
    assert f"default: {policy.text_reserve_tokens}." in said["text_reserve_tokens"]
    assert f"{policy.prefer} (default):" in said["prefer"]
    assert f"default: {policy.coverage:g}." in said["coverage"]
    words = {"text_reserve_tokens", "prefer", "coverage", "max_model_len", "media_io_kwargs"}
    assert {options[name].default for name in words} == {None}


def test_help_and_version_may_be_commands_or_one_letter(cli) -> None:
    assert cli("help", "run").out == cli("run", "--help").out
    assert cli("help").out == cli("--help").out
    assert cli("version").out == cli("--version").out == cli("-V").out != ""
    assert cli("-h").out == cli("--help").out != ""
    assert cli("scan", "-h").out == cli("scan", "--help").out != ""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment in which `mmcalib` is a program, and HOME is nobody's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        ("mmcalib sc", "scan"),
        ("mmcalib run --max-tok", "--max-tokens-per-item"),
        ("mmcalib run --gpu L4,L40", "L4,L40 L4,L40S"),
        ("mmcalib plan --model Qwen/Qwen2-Au", "Qwen/Qwen2-Audio-7B-Instruct"),
    ],
)
def test_bash_completes(typed: str, offers: str, home: dict[str, str]) -> None:
    """Complete the last of these words as an interactive shell does."""
    script = (
        'eval "$(_MMCALIB_COMPLETE=source_bash mmcalib)"; '
        f"COMP_WORDS=({typed} ''); COMP_CWORD={typed.count(' ')}; "
        '_mmcalib_completion mmcalib; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = run_program("bash", "--norc", "-c", script, env=home, check=True)
    assert done.stdout.split() == offers.split()


def test_without_words_it_teaches(cli) -> None:
    ended = cli()
    assert (ended.code, ended.err) == (0, "")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "  mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media" in ended.out
    listed = [line.split()[0] for line in ended.out.splitlines() if line.startswith("  ")]
    assert set(listed) >= set(COMMANDS)
