from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.report.terminal import summary
from tests.report.example import calibration
from tests.report.golden import check_golden
from tests.report.hostile import NAMES, named


def shown(found: Calibration, width: int = 80, *, colour: bool = False) -> str:
    page = io.StringIO()
    console = Console(
        file=page, width=width, force_terminal=colour, no_color=not colour, legacy_windows=False
    )
    summary(found, console)
    return page.getvalue()


def test_golden() -> None:
    lines = [line.rstrip() for line in shown(calibration()).splitlines()]
    check_golden("summary.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_neither_widen_nor_colour_it(name: str) -> None:
    text = shown(named(name))
    text.encode("utf-8", errors="strict")
    lines = text.split("\n")
    assert all(cell_len(line) <= 80 for line in lines)
    assert all(char.isprintable() for line in lines for char in line)


def test_names_are_shown_as_they_are_not_as_markup() -> None:
    assert "[bold]x[/bold].png" in shown(named("[bold]x[/bold].png")).replace("\n", "")


@pytest.mark.parametrize("width", [40, 60, 200])
def test_no_width_loses_the_numbers(width: int) -> None:
    text = shown(calibration(), width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert "verdict: pass" in text
    flat = text.replace("\n", "").replace(" ", "")
    assert all(number in flat for number in ("114,688", "2,538", "1003520"))


def test_colour_only_where_there_is_some() -> None:
    assert "\x1b[" not in shown(calibration())
    assert "\x1b[" in shown(calibration(), colour=True)


def test_what_is_wrong_comes_first_and_in_full() -> None:
    text = shown(named("why"))
    checks = text[text.index("Checks") :]
    order = [checks.index(mark) for mark in ("NO ", "!! ", "-- ", "ok ")]
    assert order == sorted(order)
    assert checks.count("→ why") == 2
    assert text.splitlines()[-1] == "verdict: pass · 1 warning"
