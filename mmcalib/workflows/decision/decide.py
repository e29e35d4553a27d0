"""From a census to engine arguments: measured, explored, chosen, settled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.derive import limits
from mmcalib.derive.choice import choose, levels
from mmcalib.domain.knobs import Knob
from mmcalib.domain.setting import merged
from mmcalib.progress import Progress
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.decision.counts import counts
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.explore import Explored, explore, knobs
from mmcalib.workflows.decision.measure import Sample, measure
from mmcalib.workflows.decision.settle import DecisionBuilder
from mmcalib.workflows.decision.texts import Texts

Rejects = Callable[[Decision], str]


def accept_all(decision: Decision) -> str:
    """Nothing speaks against it."""
    return ""


def decide(
    census: Census,
    prompts: PromptCensus,
    sample: Sample,
    budgets: BudgetSource,
    progress: Progress,
    rejects: Rejects = accept_all,
    texts: Texts | None = None,
) -> Decision:
    """Measure under the default, explore each knob, choose, and settle limits and budget.

    Where the longest prompt exceeds the context, or `rejects` has a reason, items are made smaller
    by as few steps as will do; where no step helps, the policy's own choice stays.
    """
    base = budgets.policy.loading
    default, unreadable = measure(budgets.host, census, base, sample, progress, budgets.files)
    admitted = counts(budgets.opened, budgets.policy, default, prompts)
    plain = limits.limit_mm_per_prompt(admitted, {})
    turned = knobs(budgets, default)
    texts = texts or Texts()

    def tried(one: Knob) -> list[Explored]:
        return explore(one, default, plain, budgets, progress)

    # How many frames are kept decides what a cap does to a video.
    loaders = [knob for knob in turned if knob.by_loader]
    explored = {k.name: tried(k) for k in loaders}
    raised = [choose([e.point for e in points], budgets.policy) for points in explored.values()]
    kept = merged([base, *(point.setting for point in raised)])
    if kept != base:
        default, more = measure(budgets.host, census, kept, sample, progress, budgets.files)
        unreadable += [skipped for skipped in more if skipped not in unreadable]
    explored |= {k.name: tried(k) for k in turned if k not in loaders}
    default_budget, default_error = budgets.default()
    there = DecisionBuilder(
        census=census,
        prompts=prompts,
        sample=sample,
        budgets=budgets,
        progress=progress,
        default=default,
        counts=admitted,
        explored=explored,
        unreadable=tuple(unreadable),
        default_budget=default_budget,
        default_error=default_error,
        texts=texts,
    )
    first = there.settle(None)
    reason = _too_long(first) or rejects(first)
    if not reason:
        return first
    settled: dict[int, Decision] = {}

    def does(at_most: int) -> bool:
        settled[at_most] = there.settle(at_most)
        return not (_too_long(settled[at_most]) or rejects(settled[at_most]))

    # Smaller items take no more, but for the rounding of profiles to whole items: so the last step
    # tells whether any will do, and halves find the first. Each takes seconds.
    steps = levels(there.frontiers(), budgets.policy)
    if not steps or not does(steps[-1]):
        return first
    most = steps[bisect_left(steps, True, hi=len(steps) - 1, key=does)]
    return replace(settled[most], forced=reason)


def _too_long(decision: Decision) -> str:
    longest = decision.longest
    if longest is None or longest.whole:
        return ""
    return (
        f"{longest.longest.origin} and its answer would take {longest.needed_tokens:,} of "
        f"{longest.max_model_len:,} tokens"
    )
