"""From a census to engine arguments: measured, explored, chosen, settled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

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

# Of the KV cache: what caps and whole steps may cost for being what startup reserves for.
_NEARLY_AS_LARGE: Final = 0.98


class MemoryJudge(Protocol):
    """Says what the GPU that will serve holds under a configuration."""

    def rejects(self, decision: Decision) -> str:
        """Why the configuration does not do there; empty where it does."""
        ...

    def kv_tokens(self, decision: Decision) -> int | None:
        """Tokens of its KV cache, 0 where vLLM would not start; None where nothing is known."""
        ...

    def default_kv_tokens(self) -> int:
        """The same of vLLM's defaults."""
        ...


class NoGpu:
    """The judge where no GPU is named: budgets in tokens decide."""

    def rejects(self, decision: Decision) -> str:
        return ""

    def kv_tokens(self, decision: Decision) -> int | None:
        return None

    def default_kv_tokens(self) -> int:
        return 0


def decide(
    census: Census,
    prompts: PromptCensus,
    sample: Sample,
    budgets: BudgetSource,
    progress: Progress,
    judge: MemoryJudge | None = None,
    texts: Texts | None = None,
) -> Decision:
    """Measure under the default, explore each knob, choose, and settle limits and budget.

    Of configurations of equal quality the one with the most KV cache is taken. Where the longest
    prompt exceeds the context, or the judge rejects it, items are made smaller by as few steps as
    will do; where no step helps, the policy's own choice stays.
    """
    judge = judge or NoGpu()
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
    default_step = budgets.opened.serve_defaults["max_num_batched_tokens"]
    first = _roomiest(there.candidates(), judge, default_step)
    too_long = _too_long(first)
    reason = too_long or judge.rejects(first)
    if not reason:
        return first
    settled: dict[int, Decision] = {}

    def does(at_most: int) -> bool:
        settled[at_most] = _roomiest(there.candidates(at_most), judge, default_step)
        return not (_too_long(settled[at_most]) or judge.rejects(settled[at_most]))

    # Smaller items take no more, but for the rounding of profiles to whole items: so the last step
    # tells whether any will do, and halves find the first. Each takes seconds.
    steps = levels(there.frontiers(), budgets.policy)
    if not steps or not does(steps[-1]):
        return first
    most = steps[bisect_left(steps, True, hi=len(steps) - 1, key=does)]
    return replace(settled[most], forced=reason, forced_by="context" if too_long else "memory")


def _step(decision: Decision) -> int:
    tokens: int = decision.engine_args["max_num_batched_tokens"]
    return tokens


def _roomiest(candidates: Iterable[Decision], judge: MemoryJudge, default_step: int) -> Decision:
    """The one whose step is nearest to vLLM's own, of those whose KV cache is nearly the largest of
    all and no smaller than that of vLLM's defaults; the first of all where nothing is known of
    them, and the last, which has vLLM's own items and step, where none has more KV cache than
    vLLM's defaults.
    """
    rated: list[tuple[Decision, int]] = []
    for decision in candidates:
        tokens = judge.kv_tokens(decision)
        if tokens is None:
            return rated[0][0] if rated else decision
        rated.append((decision, tokens))
    most, usual = max(tokens for _, tokens in rated), judge.default_kv_tokens()
    last = rated[-1][0]
    plain = last.rounding == "none" and last.setting == last.default_table.setting
    if 0 < most <= usual and plain:
        return last
    least = min(most, max(most * _NEARLY_AS_LARGE, usual))
    enough = [decision for decision, tokens in rated if tokens >= least]
    capped = [decision for decision in enough if decision is not last or not plain]
    return min(capped or enough, key=lambda one: abs(_step(one) - default_step))


def _too_long(decision: Decision) -> str:
    longest = decision.longest
    if longest is None or longest.whole:
        return ""
    return (
        f"{longest.longest.origin} and its answer would take {longest.needed_tokens:,} of "
        f"{longest.max_model_len:,} tokens"
    )
