"""Explore each value of each option again, with the others at their chosen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from mmcalib.checks.facts import Explored
from mmcalib.decision.decision import Decision
from mmcalib.decision.explore import BudgetSource, explore
from mmcalib.decision.measure import remeasure
from mmcalib.derive.frontier import Point, setting_at
from mmcalib.derive.limits import limit_mm_per_prompt
from mmcalib.domain.knobs import Knob, Setting, Value
from mmcalib.domain.shapes import Modality
from mmcalib.progress import Progress


def at_chosen_values(decision: Decision, budgets: BudgetSource, progress: Progress) -> Decision:
    """Return the decision with each point's budget, and costs, at the others' chosen values."""
    context, rounding = decision.budget.max_model_len, decision.rounding
    budgets = replace(budgets, context_tokens=context, rounding=rounding)
    most = decision.table.max_embeds()
    every: list[Explored] = []
    with progress.step("probing alternatives", len(decision.explored)) as task:
        for _, row in groupby(decision.explored, key=lambda e: e.point.knob.name):
            for explored in _explore_again(list(row), decision, budgets, progress):
                every.append(_budget(explored, decision, budgets, most))
                task.advance()
    return replace(decision, explored=tuple(every))


def _budget(
    explored: Explored, decision: Decision, budgets: BudgetSource, most: Mapping[Modality, int]
) -> Explored:
    """Return the point with its budget and arguments; `most` has the largest items' embeds."""
    point = explored.point
    if point.value == _chosen_value(decision, point.knob):
        return replace(explored, budget=decision.budget, engine_args=decision.engine_args)
    setting = _setting(decision, point.knob.name, point.value, budgets.policy.loader_setting)
    largest = {**most, point.knob.modality: point.max_embeds}
    plain = limit_mm_per_prompt(decision.counts, {})
    args = budgets.engine_args(setting, plain, max(largest.values()))
    return replace(explored, budget=budgets.budget_of(args), engine_args=args)


def _chosen_value(decision: Decision, knob: Knob) -> Value:
    """Return the chosen value, or the default of an option without effect."""
    return next((p.value for p in decision.chosen if p.knob.name == knob.name), knob.value)


def _setting(decision: Decision, name: str, value: Value, base: Setting) -> Setting:
    """Return `base` with the chosen values, but this option at this value; omit defaults."""
    knobs = {e.point.knob.name: e.point.knob for e in decision.explored}
    for knob in knobs.values():
        base = setting_at(knob, value if knob.name == name else _chosen_value(decision, knob), base)
    return base


def _explore_again(
    row: Sequence[Explored], decision: Decision, budgets: BudgetSource, progress: Progress
) -> Sequence[Explored]:
    """Return the points, explored again if other chosen values change the costs of these items."""
    knob = row[0].point.knob
    others = [p for p in decision.chosen if p.knob.name != knob.name and _may_affect(p, knob)]
    binding = any(point.items_downscaled or point.items_enlarged for point in others)
    grows = knob.is_loader_option and row[-1].point.value > _chosen_value(decision, knob)
    if not others or not (binding or grows):
        return row
    setting = _setting(decision, knob.name, knob.value, budgets.policy.loader_setting)
    shapes = decision.default_table.columns_of(knob.modality).shapes
    base = remeasure(budgets.host, decision.default_table, setting, shapes)
    plain = limit_mm_per_prompt(decision.counts, {})
    again = explore(knob, base, plain, budgets, progress)
    return again if [e.point.value for e in again] == [e.point.value for e in row] else row


def _may_affect(other: Point, knob: Knob) -> bool:
    """Return whether the other chosen value may change items of this knob's modality."""
    if other.knob.is_loader_option and not knob.is_loader_option:
        return False
    affected = (other.knob.modality, *other.knob.bleeds)
    return other.value != other.knob.value and knob.modality in affected
