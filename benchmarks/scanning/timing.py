"""Contenders timed in turns, so that a busy machine is unkind to all of them alike."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# Long enough that the clocks' grain and the loop itself do not show.
LEAST_S = 0.05

Clock = Callable[[], float]


def processor_s() -> float:
    """Seconds on a processor, of this process and of those that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of each round, per call."""

    rounds_s: tuple[float, ...]

    @property
    def best_s(self) -> float:
        return min(self.rounds_s)

    @property
    def spread(self) -> float:
        """By how much the median is above the best, as a share of it."""
        return statistics.median(self.rounds_s) / self.best_s - 1


def in_turns(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Clock = processor_s,
    least_s: float = LEAST_S,
) -> dict[str, Timed]:
    """Call each contender in every round, another one first each time; short ones several times."""
    names = list(contenders)
    calls = {name: _calls(contenders[name], clock, least_s) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            call = contenders[name]
            started = clock()
            for _ in range(calls[name]):
                call()
            samples[name].append((clock() - started) / calls[name])
    return {name: Timed(tuple(taken)) for name, taken in samples.items()}


def _calls(call: Callable[[], object], clock: Clock, least_s: float) -> int:
    """So many that they take `least_s`; one, and no trial, where that is 0."""
    if not least_s:
        return 1
    started = clock()
    call()
    return max(1, round(least_s / max(clock() - started, 1e-6)))
