"""Progress as an object that is passed in; library calls log theirs by default."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Task(Protocol):
    """One step under way."""

    def advance(self, done: int = 1) -> None:
        """Report `done` more units."""

    def total(self, total: int) -> None:
        """Say how many units there are, once it is known."""


class Progress(Protocol):
    """Told of every step that may take longer than a second."""

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Task]:
        """Open a step; `total` is its number of units, None when only time passes."""
        ...

    def note(self, text: str) -> None:
        """Say one line beside the running step."""

    def log(self, line: str) -> None:
        """Hear one line that an engine process printed."""


class _SilentTask:
    def advance(self, done: int = 1) -> None: ...
    def total(self, total: int) -> None: ...


class Silent:
    """Says nothing."""

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Task]:
        yield _SilentTask()

    def note(self, text: str) -> None: ...
    def log(self, line: str) -> None: ...


class StepLog(Silent):
    """Tells the logger `mmcalib` when a step begins and how long it took, at INFO, and what engine
    processes print, at DEBUG. Nothing is shown unless the program has logging shown.
    """

    def __init__(self) -> None:
        self._logger = logging.getLogger("mmcalib")

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Task]:
        started = time.monotonic()
        self._logger.info("%s", title)
        yield _SilentTask()
        self._logger.info("%s: %.1f s", title, time.monotonic() - started)

    def note(self, text: str) -> None:
        self._logger.info("%s", text)

    def log(self, line: str) -> None:
        self._logger.debug("%s", line)


class Interruptible:
    """Tells `progress`; a step calls `look` as it advances, and ends where that raises."""

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
