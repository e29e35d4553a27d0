"""Progress with and without a terminal."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from mmcalib.cli.progress import StepTimes, Terminal
from mmcalib.progress import Interruptible


def said(*, terminal: bool, verbose: bool = False, colour: bool = True) -> str:
    """Everything that one known and one unknown step, a note and a log line print."""
    page = io.StringIO()
    console = Console(file=page, width=80, force_terminal=terminal, no_color=not colour)
    shown = Terminal(console, verbose=verbose)
    with shown.step("measuring", 4) as task:
        task.advance(3)
    with shown.step("reading") as task:
        task.advance(12_000)
        shown.note("a note")
        shown.log("a line \x1b[31mof vLLM\x1b[0m [with brackets]")
    for _ in range(2):
        with shown.step("thinking"):
            pass
    return page.getvalue()


def test_without_a_terminal_it_is_plain_lines() -> None:
    assert said(terminal=False).splitlines() == ["measuring", "reading", "  a note", "thinking"]


def test_a_terminal_sees_share_of_a_known_total_and_count_of_an_unknown_one() -> None:
    page = said(terminal=True)
    assert all(words in page for words in ("3/4 75%", "12,000", "━"))
    # Nothing of a step stays: each line of it is erased.
    assert page.count("\x1b[2K") >= page.count("thinking")
    assert "\x1b[3" in page
    assert re.search(r"\x1b\[3\d", said(terminal=True, colour=False)) is None


def test_the_engine_s_lines_are_for_those_who_ask() -> None:
    assert "of vLLM" not in said(terminal=False)
    assert "  | a line of vLLM [with brackets]\n" in said(terminal=False, verbose=True)


def test_a_long_step_without_a_terminal_shows_that_it_lives(monkeypatch) -> None:
    monkeypatch.setattr("mmcalib.cli.progress.EVERY_S", 0.0)
    page = io.StringIO()
    with Terminal(Console(file=page, width=80)).step("reading", 10) as task:
        task.advance(5)
    assert page.getvalue() == "reading\nreading: 5/10 50%, about 0 s left\n"


def test_the_second_run_says_how_many_steps_are_left_and_how_long(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"

    def steps() -> list[str]:
        page, times = io.StringIO(), StepTimes(file)
        for title in ("reading", "replaying"):
            with Terminal(Console(file=page, width=80), times=times).step(title):
                pass
        times.save()
        return page.getvalue().splitlines()

    assert steps() == ["step 1: reading", "step 2: replaying"]
    file.write_text('[["reading", 300], ["measuring", 40], ["replaying", 9]]')
    assert steps() == ["step 1 of 3: reading, 6 min left", "step 3 of 3: replaying, 9 s left"]
    assert steps()[1] == "step 2 of 2: replaying, 0 s left"


def test_a_step_that_comes_again_keeps_its_place(tmp_path: Path) -> None:
    """A run rehearses before and after it simulates, more often than the last time."""
    file = tmp_path / "steps.json"
    file.write_text('[["rehearsing", 20], ["serving", 5], ["rehearsing", 30], ["probing", 7]]')
    times, shown = StepTimes(file), []
    for title in ("rehearsing", "serving", "rehearsing", "rehearsing", "probing"):
        with times.step(title) as line:
            shown.append((line, times.left()))
    places, left = zip(*shown, strict=True)
    assert [place[:11] for place in places] == [f"step {n} of 3" for n in (1, 2, 1, 1, 3)]
    assert left == tuple(f"{seconds} s left" for seconds in (62, 12, 62, 62, 57))


def test_the_time_left_follows_the_pace_of_this_run(tmp_path: Path, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("mmcalib.cli.progress.time.monotonic", lambda: now[0])
    (file := tmp_path / "steps.json").write_text('[["reading", 300], ["replaying", 90]]')
    times = StepTimes(file)
    with times.step("reading"):
        now[0] = 30.0
    with times.step("replaying"):
        assert times.left() == "9 s left"


def test_a_step_ends_where_what_it_looks_at_has_failed() -> None:
    page, seen = io.StringIO(), []

    def look() -> None:
        seen.append(1)
        if len(seen) > 2:
            raise ValueError("too small")

    def read() -> None:
        watched = Interruptible(Terminal(Console(file=page, width=80)), look)
        with watched.step("reading", 9) as task:
            for _ in range(9):
                task.advance()

    with pytest.raises(ValueError, match="too small"):
        read()
    assert len(seen) == 3
    assert page.getvalue() == "reading\n"
