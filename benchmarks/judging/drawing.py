"""Hypothesis as a source of requests, and as what makes a failing one small."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def drawn(strategy: SearchStrategy[T], count: int, seed: int) -> list[T]:
    """At most `count`, the same ones for one seed: fewer where there are no more."""
    found: list[T] = []

    def keep(one: T) -> bool:
        found.append(one)
        return False

    _search(strategy, keep, count, seed, shrink=False)
    return list(dict.fromkeys(found))[:count]


def shrunk(
    strategy: SearchStrategy[T],
    count: int,
    seed: int,
    fails: Callable[[T], bool],
    known: dict[T, bool],
    seconds: float,
) -> T | None:
    """The smallest that fails, beginning from the draws of `drawn` with the same arguments.

    `known` has the answers that need not be asked for again. After `seconds` nothing new is asked.
    """
    deadline = time.monotonic() + seconds

    def failing(one: T) -> bool:
        if one not in known:
            if not met or time.monotonic() > deadline:
                return False
            known[one] = fails(one)
        if known[one]:
            met.append(one)
        return known[one]

    met: list[T] = []
    return _search(strategy, failing, count, seed, shrink=True)


def _search(
    strategy: SearchStrategy[T], wanted: Callable[[T], bool], count: int, seed: int, *, shrink: bool
) -> T | None:
    rules = settings(
        max_examples=count,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        return find(strategy, wanted, settings=rules, random=Random(seed))
    except HypothesisException:
        # No such example, which is what is hoped for.
        return None
