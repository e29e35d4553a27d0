"""What is judged, whether it was derived or written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mmcalib.derive.adequacy import Adequacy
from mmcalib.derive.costs import CostTable
from mmcalib.derive.limits import Count
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality


class Configuration(Protocol):
    """Engine arguments, what they admit, and what vLLM budgets for under them."""

    @property
    def engine_args(self) -> Mapping[str, Any]: ...

    @property
    def counts(self) -> Mapping[Modality, Count]: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def plain(self) -> Budget:
        """The budget without size hints, with its dummies."""
        ...

    @property
    def adequacy(self) -> Adequacy: ...

    @property
    def table(self) -> CostTable: ...


@dataclass(frozen=True, slots=True)
class Configured:
    """One that nobody has derived or written: it is only rehearsed."""

    engine_args: Mapping[str, Any]
    counts: Mapping[Modality, Count]
    budget: Budget
    plain: Budget
    adequacy: Adequacy
    table: CostTable
