"""Progress on standard error: one live line on a terminal, elsewhere a line for each step."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as Bar
from rich.table import Column
from rich.text import Text

from mmcalib import progress
from mmcalib.errors import OutputError
from mmcalib.files import read_json, write_text
from mmcalib.text import MIB, printable

# Without a terminal, a long step prints how far it is this often.
EVERY_S = 30.0
# A rate over a shorter time is noise.
_LEAST_S = 0.5


class _Done(ProgressColumn):
    """The count, its share of a known total, and the rate: `40/88 45%, 12/s`."""

    def render(self, task: Bar) -> Text:
        if not task.completed and not task.total:
            return Text()
        return Text(_count_and_rate(task.completed, task.total, task.elapsed or 0.0), style="cyan")


class _Remaining(TimeRemainingColumn):
    """The time left of the job, or else of the step if its total is known."""

    def render(self, task: Bar) -> Text:
        if left := task.fields["times"].left():
            return Text(left, style="cyan")
        return super().render(task) if task.total else Text()


class StepTimes:
    """Seconds of this job's steps by title, beside those of the last such job, from `file`."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._past, self._now = dict[str, float](), dict[str, float]()
        with suppress(OSError, ValueError, TypeError, RecursionError):
            for title, seconds in read_json(file, MIB) if file else []:
                self._past[title] = self._past.get(title, 0.0) + float(seconds)
        self._place, self._title, self._since = 1, "", time.monotonic()
        self._repeated = set[str]()

    @contextmanager
    def step(self, title: str) -> Iterator[str]:
        """Time the step; yield its title with its place, such as `step 5 of 12: reading`."""
        self._title, self._since = title, (started := time.monotonic())
        if self._now.setdefault(title, 0.0):
            self._repeated.add(title)
        if title in (past := list(self._past or self._now)):
            self._place = 1 + past.index(title)
        of = f" of {len(past)}" if self._past else ""
        yield f"step {self._place}{of}: {title}" if self._file else title
        self._now[title] += time.monotonic() - started
        self._title = ""

    def left(self) -> str:
        """The job's time left at its pace, such as `2 min left`; empty without a past job."""
        spent = {**self._now}
        if self._title:
            spent[self._title] += time.monotonic() - self._since
        # Of the titles before this place, only those that come again and again are to come.
        coming = [t for n, t in enumerate(self._past, 1) if n >= self._place or t in self._repeated]
        ran = [t for t in self._past if t not in coming and spent.get(t, 0.0) >= _LEAST_S]
        pace = sum(spent[t] for t in ran) / max(1.0, sum(self._past[t] for t in ran)) if ran else 1
        left_s = sum(max(0.0, self._past[t] * pace - spent.get(t, 0.0)) for t in coming)
        words = f"{left_s / 60:.0f} min" if left_s >= 100 else f"{left_s:.0f} s"
        return f"{words} left" if self._past else ""

    def save(self) -> None:
        """Keep the times of the finished job, if it showed any."""
        if self._file and self._now:
            with suppress(OutputError):
                write_text(self._file, json.dumps([*self._now.items()]))


class _Step:
    def __init__(self, terminal: Terminal, title: str, bars: Progress, bar: TaskID) -> None:
        self._terminal, self._title, self._bars, self._bar = terminal, title, bars, bar
        self._last_line = time.monotonic()

    def advance(self, done: int = 1) -> None:
        self._bars.advance(self._bar, done)
        if self._bars.disable and time.monotonic() - self._last_line >= EVERY_S:
            self._last_line = time.monotonic()
            self._terminal.say(f"{self._title}: {_so_far(self._bars.tasks[0])}")

    def total(self, total: int) -> None:
        self._bars.update(self._bar, total=total)


class Terminal:
    """Show the running step; engine output only if `verbose`. A terminal keeps nothing of a step.
    Elsewhere each title is printed once, when it starts. A note is printed once.
    """

    def __init__(
        self, console: Console, *, verbose: bool = False, times: StepTimes | None = None
    ) -> None:
        self._console, self._times = console, times or StepTimes()
        self.verbose = verbose
        self._said: set[str] = set()

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[progress.Task]:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            BarColumn(bar_width=10),
            _Done(Column(no_wrap=True)),
            _Remaining(table_column=Column(no_wrap=True)),
        )
        plain = not self._console.is_terminal
        bars = Progress(*columns, console=self._console, transient=True, disable=plain)
        # Rich 13 ends even a disabled one with an empty line.
        with self._times.step(title) as shown, nullcontext() if plain else bars:
            if plain and title not in self._said:
                self._said.add(title)
                self.say(", ".join(filter(None, [shown, self._times.left()])))
            bar = bars.add_task(shown, total=total, times=self._times)
            yield _Step(self, title, bars, bar)

    def note(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(f"  {text}")

    def log(self, line: str) -> None:
        if self.verbose:
            shown = Text("  | ").append_text(Text.from_ansi(line))
            # One character for one, so that colours keep their places.
            shown.plain = "".join(c if c.isprintable() else "\ufffd" for c in shown.plain)
            self._console.print(shown, soft_wrap=True)

    def say(self, line: str) -> None:
        self._console.print(printable(line), style="dim", markup=False, highlight=False)


def terminal(
    *, quiet: bool, verbose: bool = False, times: StepTimes | None = None
) -> tuple[Console, progress.Progress]:
    """Standard error and the progress shown there; a `quiet` command shows none."""
    console = Console(stderr=True, highlight=False)
    return console, progress.Silent() if quiet else Terminal(console, verbose=verbose, times=times)


def _so_far(task: Bar) -> str:
    done, total, elapsed_s = task.completed, task.total, task.elapsed or 0.0
    words = _count_and_rate(done, total, elapsed_s)
    if total and 0 < done < total:
        words += f", about {elapsed_s * (total / done - 1):.0f} s left"
    return words


def _count_and_rate(done: float, total: float | None, elapsed_s: float) -> str:
    """Such as `40/88 45%, 12/s`."""
    words = f"{done:,.0f}/{total:,.0f} {done / total:.0%}" if total else f"{done:,.0f}"
    if done and elapsed_s >= _LEAST_S:
        rate = done / elapsed_s
        words += f", {rate:,.0f}/s" if rate >= 10 else f", {rate:.1f}/s"
    return words
