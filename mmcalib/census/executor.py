"""The protocol of executors, their tasks and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import NamedTuple, Protocol

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
        return self.load()(item)

    def load(self) -> ProbeFunction:
        """Import the module, and return the function of an item alone."""
        function = resolve_name(f"{self.module}:{self.name}")
        return lambda item: function(item, *self.more)


class ProbeTask(NamedTuple):
    """Probe the header of `item`, or all. `version` is empty if unknown, None without a cache."""

    item: Item
    whole: bool = False
    version: str | None = None


class ProbeResult(NamedTuple):
    """A probe's line for the bytes of `version`; without a version it must not be cached."""

    line: str
    version: str = ""


class Executor(Protocol):
    """Probes items in chunks. Submit several chunks before you wait for the first."""

    chunks_ahead: int
    """Number of chunks to submit before waiting for the first."""
    chunk_items: int
    """Items per chunk: a short wait, but long compared with sending. May change."""

    def submit(self, orders: Sequence[ProbeTask]) -> Callable[[], list[ProbeResult]]:
        """Submit a chunk. Return what waits for its results, one per order, in order.

        Both raise MmcalibError if no worker can take it.
        """

    def close(self) -> None:
        """Stop everything that was started. Safe to call twice."""


# Covers the slowest real file: a two-hour video without an index, on a network drive.
TIMEOUT_S = 30.0
