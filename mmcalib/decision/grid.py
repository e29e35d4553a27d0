"""Every value of every option once more, with the others as they were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from mmcalib.checks.facts import Explored
from mmcalib.decision.decision import Decision
from mmcalib.decision.explore import BudgetSource, explore
from mmcalib.decision.measure import remeasure
from mmcalib.derive.frontier import Point, at
from mmcalib.derive.limits import limit_mm_per_prompt
from mmcalib.domain.knobs import Knob, Setting, Value
from mmcalib.domain.shapes import Modality
from mmcalib.progress import Progress


def at_chosen_values(decision: Decision, budgets: BudgetSource, progress: Progress) -> Decision:
    """The decision with each point budgeted, and if need be costed, beside all chosen values."""
    context, rounding = decision.budget.max_model_len, decision.rounding
    budgets = replace(budgets, context_tokens=context, rounding=rounding)
    most = decision.table.most_embeds()
    found: list[Explored] = []
    with progress.step("trying each value beside those chosen", len(decision.explored)) as task:
        for _, row in groupby(decision.explored, key=lambda e: e.point.knob.name):
            for explored in _explore_again(list(row), decision, budgets, progress):
                found.append(_budget(explored, decision, budgets, most))
                task.advance()
    return replace(decision, explored=tuple(found))


def _budget(
    explored: Explored, decision: Decision, budgets: BudgetSource, most: Mapping[Modality, int]
) -> Explored:
    """The point with its budget and arguments; `most` has the embeds of the largest items."""
    point = explored.point
    if point.value == _chosen_value(decision, point.knob):
        return replace(explored, budget=decision.budget, engine_args=decision.engine_args)
    setting = _setting(decision, point.knob.name, point.value, budgets.policy.loading)
    largest = {**most, point.knob.modality: point.max_embeds}
    plain = limit_mm_per_prompt(decision.counts, {})
    args = budgets.engine_args(setting, plain, max(largest.values()))
    return replace(explored, budget=budgets.of(args), engine_args=args)


def _chosen_value(decision: Decision, knob: Knob) -> Value:
    """The default of an option that has no effect."""
    return next((p.value for p in decision.chosen if p.knob.name == knob.name), knob.value)


def _setting(decision: Decision, name: str, value: Value, base: Setting) -> Setting:
    """`base` with every chosen value, but this option at this value; defaults are not said."""
    knobs = {e.point.knob.name: e.point.knob for e in decision.explored}
    for knob in knobs.values():
        base = at(knob, value if knob.name == name else _chosen_value(decision, knob), base)
    return base


def _explore_again(
    row: Sequence[Explored], decision: Decision, budgets: BudgetSource, progress: Progress
) -> Sequence[Explored]:
    """The points, explored again where other chosen values change what these items cost."""
    knob = row[0].point.knob
    beside = [p for p in decision.chosen if p.knob.name != knob.name and _moves(p, knob)]
    binding = any(point.items_downscaled or point.items_enlarged for point in beside)
    grows = knob.by_loader and row[-1].point.value > _chosen_value(decision, knob)
    if not beside or not (binding or grows):
        return row
    setting = _setting(decision, knob.name, knob.value, budgets.policy.loading)
    shapes = decision.default_table.of(knob.modality).shapes
    base = remeasure(budgets.host, decision.default_table, setting, shapes)
    plain = limit_mm_per_prompt(decision.counts, {})
    again = explore(knob, base, plain, budgets, progress)
    return again if [e.point.value for e in again] == [e.point.value for e in row] else row


def _moves(other: Point, knob: Knob) -> bool:
    """Whether the other option, as chosen, may change items of this one's modality."""
    if other.knob.by_loader and not knob.by_loader:
        return False
    touched = (other.knob.modality, *other.knob.bleeds)
    return other.value != other.knob.value and knob.modality in touched
