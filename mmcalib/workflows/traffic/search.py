"""What a search for the worst order is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmcalib.domain.traffic import TRIALS


@dataclass(frozen=True, slots=True)
class WorstOrderSearch:
    """Judge so many `trials`; `file` gets the requests of the worst."""

    file: Path
    trials: int = TRIALS
    seed: int = 0
