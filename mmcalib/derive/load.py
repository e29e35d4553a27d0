"""What requests take while they are served, beside what startup reserved for it (R14)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmcalib.domain.traffic import TrafficStep
from mmcalib.releases.constants import VLLM_SLACK_BYTES


@dataclass(frozen=True, slots=True)
class Margin:
    """The most that a step took, what startup reserved for such, and what `gpu_memory_utilization`
    leaves of the GPU's `total_bytes` beside that.
    """

    peak_bytes: int
    reserved_bytes: int
    outside_bytes: int
    total_bytes: int

    @property
    def nbytes(self) -> int:
        """What was left of the reserve at the highest step; below zero what went beyond it."""
        return self.reserved_bytes - self.peak_bytes

    @property
    def within(self) -> bool:
        """Whether no step went beyond the reserve, but for vLLM's own slack."""
        return self.nbytes + VLLM_SLACK_BYTES >= 0

    @property
    def fits(self) -> bool:
        """Whether what went beyond it found room on the GPU."""
        return self.nbytes + VLLM_SLACK_BYTES + self.outside_bytes >= 0

    @property
    def utilization(self) -> float | None:
        """The `gpu_memory_utilization`, in whole hundredths, that leaves as much as the highest
        step wants; None where there is room, or could never be.
        """
        beyond = -self.nbytes - VLLM_SLACK_BYTES
        if self.fits or beyond >= self.total_bytes:
            return None
        return math.floor((self.total_bytes - beyond) / self.total_bytes * 100) / 100 or None


def thinned(steps: Sequence[TrafficStep], most: int) -> Iterator[tuple[int, TrafficStep]]:
    """At most so many of the steps with their numbers: of each stretch the one that took most."""
    length = -(-len(steps) // most) if steps else 1
    for start in range(0, len(steps), length):
        stretch = range(start, min(start + length, len(steps)))
        highest = max(stretch, key=lambda number: steps[number].peak_bytes or 0)
        yield highest, steps[highest]
