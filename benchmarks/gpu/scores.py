"""How true the predictions were: means and worst, against what they must keep."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu.results import Result
from mmcalib.memory.checks import ENCODER_OFF, KV_OFF, KV_OVER


@dataclass(frozen=True, slots=True)
class Score:
    """One aim: the figure that it is about, its limit, and how many cases have it."""

    name: str
    value: float
    limit: float
    cases: int

    @property
    def verdict(self) -> str:
        if not self.cases:
            return "no case"
        return "pass" if self.value <= self.limit else "fail"

    def __str__(self) -> str:
        if not self.cases:
            return f"{self.name}: no case has it"
        return (
            f"{self.name}: {self.value:.2%} of at most {self.limit:.0%}, "
            f"{self.cases} cases: {self.verdict}"
        )


def offs(results: Iterable[Result], component: str) -> list[float]:
    """The errors of one component as shares of what was measured, where it was more than none."""
    return [
        one.off
        for result in results
        for one in result.parts
        if one.name == component and one.off is not None
    ]


def scores(results: Sequence[Result]) -> list[Score]:
    """Mean absolute error and worst over-promise of the KV pool, worst error of the encoder."""
    pool, encoder = offs(results, "KV pool"), offs(results, "encoder peak")
    mean = statistics.fmean(map(abs, pool)) if pool else 0.0
    return [
        Score("KV pool, mean absolute error", mean, KV_OFF, len(pool)),
        Score("KV pool, worst over-promise", max(0.0, *pool, 0.0), KV_OVER, len(pool)),
        Score(
            "encoder peak, worst error", max(map(abs, encoder), default=0.0), ENCODER_OFF,
            len(encoder),
        ),
    ]  # fmt: skip


def disagreed(results: Iterable[Result]) -> list[str]:
    """Cases that the rehearsal let start and the GPU did not, or the other way round."""
    found = []
    for one in results:
        if one.rehearsed is None:
            continue
        predicted = one.rehearsed["kv_cache_tokens"] is not None
        really = one.started is not None
        if predicted != really:
            words = ("would start", "would not start")
            said = "started" if really else f"did not: {one.failed.get('start', 'unknown')}"
            found.append(f"{one.key}: rehearsed, it {words[not predicted]}; it {said}")
    return found
