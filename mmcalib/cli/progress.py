"""Progress on the terminal: a bar per step on a TTY, a line per step elsewhere. On stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from mmcalib.progress import Task


class _BarTask:
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, done: int = 1) -> None:
        self._bars.advance(self._task, done)

    def total(self, total: int) -> None:
        self._bars.update(self._task, total=total)


class Terminal:
    """Shows each step while it runs, and how long it took once it is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = ""

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Task]:
        started = time.monotonic()
        columns: list[ProgressColumn] = [
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        ]
        if total is not None:
            columns += [BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
        with Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        ) as bars:
            yield _BarTask(bars, bars.add_task(title, total=total))
        self._say(f"{title}: {time.monotonic() - started:.1f} s")

    def note(self, text: str) -> None:
        self._say(f"  {text}")

    def _say(self, line: str) -> None:
        self._console.print(line, style="dim", markup=False, highlight=False)
