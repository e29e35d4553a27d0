"""The frontier (R2): every value of every knob, with its costs and vLLM's budget for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from mmcalib.derive import frontier
from mmcalib.derive.costs import CostTable
from mmcalib.derive.frontier import Point, affected, witness
from mmcalib.domain.budget import Budget
from mmcalib.domain.knobs import Knob
from mmcalib.domain.media_option import Value
from mmcalib.progress import Progress
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.decision.counting import EmbedCounter
from mmcalib.workflows.decision.measure import remeasure


@dataclass(frozen=True, slots=True)
class Explored:
    """One point of the frontier with vLLM's budget for it."""

    point: Point
    budget: Budget
    engine_args: Mapping[str, Any] = field(default_factory=dict)


def knobs(budgets: BudgetSource, table: CostTable) -> list[Knob]:
    """Those that concern the corpus, and that the user has not turned."""
    given = budgets.policy.loading
    return [
        knob for knob in budgets.opened.knobs if table.of(knob.modality) and not knob.given(given)
    ]


def explore(
    knob: Knob,
    default: CostTable,
    per_prompt: Mapping[str, Any],
    budgets: BudgetSource,
    progress: Progress,
) -> list[Explored]:
    """Every candidate of one knob, costed and budgeted, ascending; the default among them."""
    tried = knob.values(default.of(knob.modality), budgets.policy)
    explored = []
    with progress.step(f"trying {knob.name}", len(tried)) as task:
        counter = None if knob.bleeds else EmbedCounter.proven(budgets.host, default, knob.modality)
        for value in tried:
            # A table has an entry of every shape: one at a time.
            table = _under(knob, value, default, budgets, counter)
            point = frontier.point(knob, value, table, default)
            args = budgets.engine_args(point.setting, per_prompt, table.largest_embeds)
            explored.append(Explored(point, budgets.of(args), args))
            task.advance()
    return explored


def moves(explored: Sequence[Explored]) -> bool:
    """Whether any value of one knob moved tokens or budget away from the default value's."""
    seen = {
        (e.point.max_tokens, tuple(sorted(e.budget.max_tokens_per_item.items()))) for e in explored
    }
    return len(explored) < 2 or len(seen) > 1


def _under(
    knob: Knob,
    value: Value,
    default: CostTable,
    budgets: BudgetSource,
    counter: EmbedCounter | None,
) -> CostTable:
    """The costs at one value: counted, else measured. Shapes that fit under a cap are not measured
    again, except one that would tell if they had to be.
    """
    setting = frontier.at(knob, value, default.setting)
    if setting == default.setting:
        return default
    if counter and (counted := counter.under(setting, knob.changed(counter.usual.shapes, value))):
        return counted
    every = chain.from_iterable(
        default.of(modality).shapes for modality in (knob.modality, *knob.bleeds)
    )
    changed = affected(knob, value, default)
    unchanged = witness(knob, default, changed)
    if unchanged is None or knob.bleeds:
        return remeasure(budgets.host, default, setting, every)
    table = remeasure(budgets.host, default, setting, [*changed, unchanged])
    now = table.costs.get(unchanged)
    if now is not None and now.tokens == default.costs[unchanged].tokens:
        return table
    return remeasure(budgets.host, default, setting, every)
