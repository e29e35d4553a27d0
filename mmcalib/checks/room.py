"""What the costliest step leaves of one GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """On one GPU: bytes in all and as asked for, what the costliest step takes, and what of that
    the profile reserves all the same.
    """

    total_bytes: int
    requested_bytes: int
    peak_bytes: int
    reserved_bytes: int

    @property
    def utilization(self) -> float:
        """The `gpu_memory_utilization` that leaves room for the rest, in whole hundredths."""
        short = max(0, self.peak_bytes - self.reserved_bytes)
        return math.floor((self.requested_bytes - short) / self.total_bytes * 100) / 100
