"""From a census to engine arguments: measured, explored, chosen, each with vLLM's own budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.census.shapes import Modality
from mmcalib.corpus.item import Skipped
from mmcalib.derive import frontier, limits
from mmcalib.derive.adequacy import Adequacy, adequacy
from mmcalib.derive.choice import choose
from mmcalib.derive.costs import CostTable
from mmcalib.derive.frontier import Point
from mmcalib.derive.limits import Count, Hint
from mmcalib.engine.messages import Budget, Knob
from mmcalib.engine.setting import Setting
from mmcalib.job.decision.budgets import Budgets
from mmcalib.job.decision.counts import counts
from mmcalib.job.decision.explore import Explored, explore, knobs, moves
from mmcalib.job.decision.hints import hints
from mmcalib.job.decision.measure import Sample, measure
from mmcalib.progress import Progress


@dataclass(frozen=True, slots=True)
class Decision:
    """The derived configuration and everything it was derived from. `chosen` has one point of each
    knob that has an effect; `unhinted` is the budget without size hints: what vLLM says of the
    model.
    """

    default_table: CostTable
    table: CostTable
    setting: Setting
    explored: tuple[Explored, ...]
    chosen: tuple[Point, ...]
    ineffective: tuple[Knob, ...]
    counts: dict[Modality, Count]
    hints: dict[Modality, Hint]
    refused_hints: dict[Modality, str]
    default_budget: Budget
    default_error: str
    budget: Budget
    unhinted: Budget
    adequacy: Adequacy
    engine_args: dict[str, Any]
    unreadable: tuple[Skipped, ...]


def decide(
    census: Census, prompts: PromptCensus, sample: Sample, budgets: Budgets, progress: Progress
) -> Decision:
    """Measure under the default, explore each knob, choose, and settle limits and budget."""
    host, policy = budgets.host, budgets.policy
    base = Setting(media_io_kwargs=policy.media_io_kwargs)
    default, unreadable = measure(host, census, base, sample, progress)
    admitted = counts(budgets.opened, policy, default, prompts)
    plain = limits.limit_mm_per_prompt(admitted, {})
    default_budget, default_error = budgets.default()
    turned = knobs(budgets, default)
    explored = {knob.name: explore(knob, default, plain, budgets, progress) for knob in turned}
    ineffective = tuple(knob for knob in turned if not moves(explored[knob.name]))
    chosen = tuple(
        choose([e.point for e in explored[knob.name]], policy)
        for knob in turned
        if knob not in ineffective
    )
    setting = frontier.merged([base, *(point.setting for point in chosen)])
    table = default
    if setting != base:
        table, more = measure(host, census, setting, sample, progress)
        unreadable += [s for s in more if s not in unreadable]
    engine_args = budgets.engine_args(setting, plain, table)
    budget = unhinted = budgets.of(engine_args, build_dummy=True)
    found, refused = hints(engine_args, admitted, table, budgets)
    if found:
        engine_args["limit_mm_per_prompt"] = limits.limit_mm_per_prompt(admitted, found)
        engine_args["max_num_batched_tokens"] = budgets.batched(engine_args, table)
        budget = budgets.of(engine_args, build_dummy=True)
    return Decision(
        default_table=default,
        table=table,
        setting=setting,
        explored=tuple(e for points in explored.values() for e in points),
        chosen=chosen,
        ineffective=ineffective,
        counts=admitted,
        hints=found,
        refused_hints=refused,
        default_budget=default_budget,
        default_error=default_error,
        budget=budget,
        unhinted=unhinted,
        adequacy=adequacy(budget, {m: c.value for m, c in admitted.items()}),
        engine_args=engine_args,
        unreadable=tuple(unreadable),
    )
