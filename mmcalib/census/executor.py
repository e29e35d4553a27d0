"""Executor protocol, tasks and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import NamedTuple, Protocol, TypeVar

from mmcalib.domain.items import Item, Seen

Look = Callable[[Item], Seen | str]
"""Says what an item is, or something else of it in a line of its own; never raises for what is
wrong with the item.
"""


@dataclass(frozen=True, slots=True)
class Named:
    """A function by its place, with arguments after the item: senders need not import it."""

    module: str
    name: str
    more: tuple[str, ...] = ()

    def __call__(self, item: Item) -> Seen | str:
        return load(self.module, self.name)(item, *self.more)


@cache
def load(module: str, name: str) -> Callable[..., Seen | str]:
    function: Callable[..., Seen | str] = getattr(import_module(module), name)
    return function


class ProbeTask(NamedTuple):
    """Look at `item`: its header or, if `whole`, all of it.

    `version` is that of the bytes asked about: empty if unknown, None if nobody asks.
    """

    item: Item
    whole: bool = False
    version: str | None = None


class ProbeResult(NamedTuple):
    """`line` is the encoded `Seen`, or `Look`'s own, of `version`; not to be kept without one."""

    line: str
    version: str = ""


Ticket = TypeVar("Ticket")
"""A chunk that was handed in, as its executor knows it."""


def count_fitting(items: int, took_s: float, chunk_s: float) -> int:
    """How many items take `chunk_s`, from some that were just answered; at least one."""
    return max(1, int(items * chunk_s / max(took_s, 1e-6)))


class Executor(Protocol[Ticket]):
    """Answers orders. Chunks may be handed in ahead of asking for what came of them."""

    ahead: int
    """As many chunks should be handed in before the first is asked for."""
    chunk_items: int
    """Few enough for short waits, many enough that sending a chunk costs nothing beside it; may
    change as the executor learns how long items take.
    """

    def submit(self, orders: Sequence[ProbeTask]) -> Ticket:
        """Hand in a chunk. Raises MmcalibError where there is nobody to do it."""
        ...

    def result(self, ticket: Ticket) -> list[ProbeResult]:
        """Wait for a chunk; one answer per order, in their order."""
        ...

    def close(self) -> None:
        """End whatever was started. Safe to call twice."""
        ...


# The longest that a real file took: a video of two hours without an index, from a network drive.
TIMEOUT_S = 30.0
