"""Progress as an object that is passed in; the default says nothing."""

from __future__ import annotations

from collections.abc import Iterator
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
