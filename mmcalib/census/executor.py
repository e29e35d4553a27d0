"""The protocol of executors, their tasks and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from mmcalib.domain.items import Item, ProbedMedia

ProbeFunction = Callable[[Item], ProbedMedia | str]
"""Probes an item: returns what it is, or a line of the probe's own. Never raises for bad items."""


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A function by module and name, so that the sender need not import it, and extra arguments."""

    module: str
    name: str
    more: tuple[object, ...] = ()

    def __call__(self, item: Item) -> ProbedMedia | str:
        return load_function(self.module, self.name)(item, *self.more)


@cache
def load_function(module: str, name: str) -> Callable[..., ProbedMedia | str]:
    function: Callable[..., ProbedMedia | str] = getattr(import_module(module), name)
    return function


class ProbeTask(NamedTuple):
    """Probe the header of `item`, or all. `version` is empty if unknown, None without a cache."""

    item: Item
    whole: bool = False
    version: str | None = None


class ProbeResult(NamedTuple):
    """A probe's line for the bytes of `version`; without a version it must not be cached."""

    line: str
    version: str = ""


def count_fitting(items: int, took_s: float, chunk_s: float) -> int:
    """Return how many items take `chunk_s`, given that `items` took `took_s`; at least one."""
    return max(1, int(items * chunk_s / max(took_s, 1e-6)))


class Executor(Protocol):
    """Probes items in chunks. Submit several chunks before you ask for the first result."""

    chunks_ahead: int
    """Number of chunks to submit before asking for the first result."""
    chunk_items: int
    """Items per chunk: a short wait, but long compared with sending. Changes with their speed."""

    def submit(self, orders: Sequence[ProbeTask]) -> Any:
        """Submit a chunk, and return its ticket. Raises MmcalibError if no worker can take it."""

    def result(self, ticket: Any) -> list[ProbeResult]:
        """Wait for a chunk, and return one result per order, in order."""

    def close(self) -> None:
        """Stop everything that was started. Safe to call twice."""


# Covers the slowest real file: a two-hour video without an index, on a network drive.
TIMEOUT_S = 30.0
