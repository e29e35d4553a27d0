"""From a census to engine arguments: measured, explored, chosen, settled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.derive import limits
from mmcalib.derive.frontier import choose, levels
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

    def overruns(self, decision: Decision) -> bool:
        """Whether the corpus' own requests take more than it reserves, and than vLLM's defaults
        would have them take beyond theirs.
        """
        ...


class NoGpu:
    """The judge where no GPU is named: budgets in tokens decide."""

    def rejects(self, decision: Decision) -> str:
        return ""

    def kv_tokens(self, decision: Decision) -> int | None:
        return None

    def default_kv_tokens(self) -> int:
        return 0

    def overruns(self, decision: Decision) -> bool:
        return False


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

    Of configurations of equal quality the one with the most KV cache is taken, if the corpus' own
    requests stay within its reserve. Where the longest
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
    ranked = _roomiest_first(there.candidates(), judge, default_step)
    first = ranked[0]
    too_long = _too_long(first)
    reason = too_long or judge.rejects(first)
    if not reason:
        return _first_within_its_reserve(ranked, judge)
    settled: dict[int, list[Decision]] = {}

    def does(at_most: int) -> bool:
        settled[at_most] = _roomiest_first(there.candidates(at_most), judge, default_step)
        best = settled[at_most][0]
        return not (_too_long(best) or judge.rejects(best))

    # Smaller items take no more, but for the rounding of profiles to whole items: so the last step
    # tells whether any will do, and halves find the first. Each takes seconds.
    steps = levels(there.frontiers(), budgets.policy)
    if not steps or not does(steps[-1]):
        return first
    most = steps[bisect_left(steps, True, hi=len(steps) - 1, key=does)]
    chosen = _first_within_its_reserve(settled[most], judge)
    return replace(chosen, forced=reason, forced_by="context" if too_long else "memory")


def _step(decision: Decision) -> int:
    tokens: int = decision.engine_args["max_num_batched_tokens"]
    return tokens


def _roomiest_first(
    candidates: Iterable[Decision], judge: MemoryJudge, default_step: int
) -> list[Decision]:
    """Those whose KV cache is nearly the largest, and no smaller than that of vLLM's defaults, by
    how near their step is to vLLM's own; then the others that have no less than the defaults. Where
    none has more, vLLM's own items and step alone; without a GPU, the first of all alone.
    """
    rated: list[tuple[Decision, int]] = []
    for decision in candidates:
        tokens = judge.kv_tokens(decision)
        if tokens is None:
            return [rated[0][0] if rated else decision]
        rated.append((decision, tokens))
    most, usual = max(tokens for _, tokens in rated), judge.default_kv_tokens()
    last = rated[-1][0]
    plain = last.rounding == "none" and last.setting == last.default_table.setting
    if 0 < most <= usual and plain:
        return [last]
    least = min(most, max(most * _NEARLY_AS_LARGE, usual))
    enough = [decision for decision, tokens in rated if tokens >= least]
    capped = [decision for decision in enough if decision is not last or not plain]
    ranked = sorted(capped or enough, key=lambda one: abs(_step(one) - default_step))
    taken = {id(one) for one in ranked}
    return [*ranked, *(one for one, tokens in rated if tokens >= usual and id(one) not in taken)]


def _first_within_its_reserve(ranked: Sequence[Decision], judge: MemoryJudge) -> Decision:
    """The very first where none is, or there is no other."""
    if len(ranked) == 1:
        return ranked[0]
    return next(
        (one for one in ranked if not (judge.rejects(one) or judge.overruns(one))), ranked[0]
    )


def _too_long(decision: Decision) -> str:
    longest = decision.longest
    if longest is None or longest.whole:
        return ""
    return (
        f"{longest.longest.origin} and its answer would take {longest.needed_tokens:,} of "
        f"{longest.max_model_len:,} tokens"
    )
