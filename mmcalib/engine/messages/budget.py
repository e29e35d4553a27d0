"""vLLM's encoder budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmcalib.domain.budget import Budget
from mmcalib.engine.messages.message import Repeatable, Reply, Request


@dataclass(frozen=True, slots=True)
class BudgetFound(Reply):
    """It, as vLLM computes it."""

    budget: Budget


@dataclass(frozen=True, slots=True)
class AskBudget(Repeatable, Request[BudgetFound]):
    """vLLM's own MultiModalBudget for these engine arguments (underscored names).

    `build_dummy` also builds a dummy item of each modality, which may take gigabytes;
    `only_profiled` leaves out those that the profile does not run.
    """

    engine_args: dict[str, Any]
    build_dummy: bool
    only_profiled: bool = False
