"""From a census to engine arguments: measured, explored, chosen, settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.derive import limits
from mmcalib.derive.choice import levels
from mmcalib.engine.setting import Setting
from mmcalib.job.decision.budgets import Budgets
from mmcalib.job.decision.counts import counts
from mmcalib.job.decision.decision import Decision
from mmcalib.job.decision.explore import explore, knobs
from mmcalib.job.decision.measure import Sample, measure
from mmcalib.job.decision.settle import Settling
from mmcalib.progress import Progress

Unsuited = Callable[[Decision], str]


def anything(decision: Decision) -> str:
    """Nothing speaks against it."""
    return ""


def decide(
    census: Census,
    prompts: PromptCensus,
    sample: Sample,
    budgets: Budgets,
    progress: Progress,
    unsuited: Unsuited = anything,
) -> Decision:
    """Measure under the default, explore each knob, choose, and settle limits and budget.

    Where the longest prompt exceeds the context, or `unsuited` has a reason, items are made smaller
    step by step until neither is so; where no step helps, the policy's own choice stays.
    """
    base = Setting(media_io_kwargs=budgets.policy.media_io_kwargs)
    default, unreadable = measure(budgets.host, census, base, sample, progress)
    admitted = counts(budgets.opened, budgets.policy, default, prompts)
    plain = limits.limit_mm_per_prompt(admitted, {})
    turned = knobs(budgets, default)
    explored = {knob.name: explore(knob, default, plain, budgets, progress) for knob in turned}
    there = Settling(
        census, prompts, sample, budgets, progress, default, admitted, explored, tuple(unreadable)
    )
    first = there.settle(None)
    reason = _too_long(first) or unsuited(first)
    if not reason:
        return first
    before = first.setting
    for at_most in levels(there.frontiers(), budgets.policy):
        tried = there.settle(at_most)
        if tried.setting == before:
            continue
        before = tried.setting
        if not (_too_long(tried) or unsuited(tried)):
            return replace(tried, forced=reason)
    return first


def _too_long(decision: Decision) -> str:
    longest = decision.longest
    if longest is None or longest.passes:
        return ""
    return (
        f"{longest.longest.origin} and its text would take {longest.needed_tokens:,} of "
        f"{longest.max_model_len:,} tokens"
    )
