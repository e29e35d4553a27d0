"""What the shell completes, asked as the shells ask it, and what a first-time user reads."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mmcalib.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment in which `mmcalib` is a program, and HOME is nobody's."""
    program = tmp_path / "bin" / "mmcalib"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from mmcalib.cli import main\nmain()\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(tmp_path)}


def bash(script: str, env: dict[str, str]) -> str:
    """As an interactive shell would have it after the installation."""
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def completed(typed: str, env: dict[str, str]) -> list[str]:
    """What bash offers for the last of these words."""
    words = typed.split(" ")
    script = (
        'eval "$(_MMCALIB_COMPLETE=source_bash mmcalib)"; '
        f"COMP_WORDS=({typed} ''); COMP_CWORD={len(words) - 1}; "
        '_mmcalib_completion mmcalib; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return bash(script, env).split()


@pytest.mark.parametrize(
    ("typed", "offers"),
    [("mmcalib sc", ["scan"]), ("mmcalib run --max-tok", ["--max-tokens-per-item"])],
)
def test_bash_completes(typed: str, offers: list[str], home: dict[str, str]) -> None:
    assert completed(typed, home) == offers


def test_without_words_it_teaches(cli) -> None:
    ended = cli()
    assert (ended.code, ended.err) == (0, "")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "  mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media" in ended.out
    listed = [line.split()[0] for line in ended.out.splitlines() if line.startswith("  ")]
    assert set(listed) >= set(COMMANDS) - {"serve"}


def test_the_list_of_commands_is_not_cut_off(cli) -> None:
    page = cli("--help").out
    assert "..." not in page.partition("Commands:")[2]
    assert max(map(len, page.splitlines())) <= 80
