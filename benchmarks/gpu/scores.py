"""How true the predictions were: means and worst, against what they must keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu.results import Result
from mmcalib.checks.engine import ENCODER_OFF
from mmcalib.text import GIB


@dataclass(frozen=True, slots=True)
class Score:
    """One aim: the figure that it is about, its limit, and how many cases have it."""

    name: str
    value: float
    limit: float
    cases: int
    form: str = "{:.2%}"

    @property
    def verdict(self) -> str:
        if not self.cases:
            return "no case"
        return "pass" if self.value <= self.limit else "fail"

    def __str__(self) -> str:
        if not self.cases:
            return f"{self.name}: no case has it"
        return (
            f"{self.name}: {self.form.format(self.value)} of at most "
            f"{self.form.format(self.limit)}, {self.cases} cases: {self.verdict}"
        )


def scores(results: Sequence[Result]) -> list[Score]:
    """Worst errors of the KV pool, and of the encoder's peak either way."""
    pools = [
        (pool.predicted - pool.measured, one.card_bytes)
        for one in results
        if (pool := one.parts.get("KV pool"))
    ]
    peaks = (one.parts.get("encoder peak") for one in results)
    encoder = [abs(peak.off) for peak in peaks if peak and peak.off is not None]
    shares = [abs(off) / card for off, card in pools]
    over = max((off / GIB for off, _ in pools), default=0.0)
    return [
        Score("KV pool, worst error of the card", max(shares, default=0.0), 0.01, len(pools)),
        Score("KV pool, most promised too much, GiB", max(over, 0.0), 0.3, len(pools), "{:.2f}"),
        Score(
            "encoder peak, worst error", max(encoder, default=0.0), ENCODER_OFF,
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
