"""Progress of long jobs. Library calls log it by default."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Task(Protocol):
    """A running step."""

    def advance(self, done: int = 1) -> None:
        """Report `done` more units."""

    def total(self, total: int) -> None:
        """Set the number of units once it is known."""


class Progress(Protocol):
    """Receives every step that may take longer than a second."""

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Task]:
        """Open a step; `total` is its number of units, None without any."""

    def note(self, text: str) -> None:
        """Print one line during the running step."""

    def log(self, line: str) -> None:
        """Receive one line of an engine process's output."""


class Silent:
    """Ignores all progress; it is its own task."""

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Task]:
        yield self

    def advance(self, done: int = 1) -> None: ...
    def total(self, total: int) -> None: ...
    def note(self, text: str) -> None: ...
    def log(self, line: str) -> None: ...


class StepLog(Silent):
    """Logs to `mmcalib`: steps and their time at INFO, engine output at DEBUG."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("mmcalib")

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Task]:
        started = time.monotonic()
        self._logger.info("%s", title)
        yield self
        self._logger.info("%s: %.1f s", title, time.monotonic() - started)

    def note(self, text: str) -> None:
        self._logger.info("%s", text)

    def log(self, line: str) -> None:
        self._logger.debug("%s", line)


class Interruptible:
    """Forwards to `progress`. A step calls `look` at each advance and ends if that raises."""

    def __init__(self, progress: Progress, look: Callable[[], None]) -> None:
        self.note, self.log = progress.note, progress.log
        self._progress, self._look = progress, look

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Task]:
        with self._progress.step(title, total) as task:
            yield _InterruptibleTask(task, self._look)


class _InterruptibleTask:
    def __init__(self, task: Task, look: Callable[[], None]) -> None:
        self.total, self._task, self._look = task.total, task, look

    def advance(self, done: int = 1) -> None:
        self._look()
        self._task.advance(done)
