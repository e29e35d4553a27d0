"""The configuration of chosen points: limits, context, hints and step, with vLLM's budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.derive import limits
from mmcalib.derive.adequacy import adequacy
from mmcalib.derive.choice import choose
from mmcalib.derive.costs import CostTable
from mmcalib.derive.fit import Fit
from mmcalib.derive.frontier import Point
from mmcalib.derive.limits import Count, Hint
from mmcalib.derive.policy import FIT
from mmcalib.domain.budget import Budget
from mmcalib.domain.items import Skipped
from mmcalib.domain.setting import merged
from mmcalib.domain.shapes import Modality
from mmcalib.progress import Progress
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.explore import Explored, moves
from mmcalib.workflows.decision.fits import longest_prompt, smallest_context
from mmcalib.workflows.decision.measure import Sample, measure
from mmcalib.workflows.decision.texts import Texts


@dataclass(frozen=True, slots=True)
class DecisionBuilder:
    """Everything that does not depend on which points are chosen."""

    census: Census
    prompts: PromptCensus
    sample: Sample
    budgets: BudgetSource
    progress: Progress
    default: CostTable
    counts: dict[Modality, Count]
    explored: Mapping[str, Sequence[Explored]]
    unreadable: tuple[Skipped, ...]
    default_budget: Budget
    default_error: str
    texts: Texts

    def frontiers(self) -> list[list[Point]]:
        """The points of each knob that has an effect."""
        return [[e.point for e in points] for points in self.explored.values() if moves(points)]

    def settle(self, at_most: int | None) -> Decision:
        """The configuration of the policy's choice, of items of `at_most` tokens."""
        policy, unreadable = self.budgets.policy, list(self.unreadable)
        chosen = tuple(self._chosen(e, at_most) for e in self.explored.values() if moves(e))
        base, table = self.default.setting, self.default
        setting = merged([base, *(point.setting for point in chosen)])
        if setting != base:
            host, files = self.budgets.host, self.budgets.files
            table, more = measure(
                host, self.census, setting, self.sample, self.progress, files, before=table
            )
            unreadable += [s for s in more if s not in unreadable]
        plain = limits.limit_mm_per_prompt(self.counts, {})
        budgets = self.budgets
        engine_args = budgets.engine_args(setting, plain, table.largest_embeds)
        budget = budgets.of(engine_args, build_dummy=True)
        longest = self._longest(table, budget)
        if policy.max_model_len == FIT:
            context = smallest_context(longest, budgets.opened.max_model_len)
            budgets = replace(budgets, context_tokens=context)
            engine_args = budgets.engine_args(setting, plain, table.largest_embeds)
            budget = budgets.of(engine_args, build_dummy=True)
            longest = self._longest(table, budget)
        unhinted = budget
        found, refused = _hints(engine_args, self.counts, table, budgets)
        if found:
            engine_args["limit_mm_per_prompt"] = limits.limit_mm_per_prompt(self.counts, found)
            engine_args["max_num_batched_tokens"] = budgets.batched(
                engine_args, table.largest_embeds
            )
            budget = budgets.of(engine_args, build_dummy=True)
        return Decision(
            default_table=self.default,
            table=table,
            setting=setting,
            explored=tuple(e for points in self.explored.values() for e in points),
            chosen=chosen,
            ineffective=tuple(p[0].point.knob for p in self.explored.values() if not moves(p)),
            counts=self.counts,
            hints=found,
            refused_hints=refused,
            default_budget=self.default_budget,
            default_error=self.default_error,
            budget=budget,
            unhinted=unhinted,
            adequacy=adequacy(budget, {m: c.value for m, c in self.counts.items()}),
            engine_args=engine_args,
            unreadable=tuple(unreadable),
            longest=longest,
        )

    def _chosen(self, explored: Sequence[Explored], at_most: int | None) -> Point:
        """The policy's choice; the default, where nobody asked for a cap and it would take nothing
        off any item, nor off vLLM's own largest: 0.28 counts that without the cap, but builds its
        dummy under it, and would reserve less than it schedules.
        """
        policy = self.budgets.policy
        point = choose([e.point for e in explored], policy, at_most)
        if policy.max_tokens_per_item is not None or point.items_downscaled:
            return point
        at = {e.point.value: e for e in explored}
        usual = at[point.knob.value]
        return usual.point if _largest(at[point.value]) == _largest(usual) else point

    def _longest(self, table: CostTable, budget: Budget) -> Fit | None:
        """The prompt that needs the longest context."""
        return longest_prompt(
            self.prompts,
            table,
            self.counts,
            budget,
            self.budgets.policy.text_reserve_tokens,
            budget.max_model_len,
            self.texts,
            encoder_decoder=self.budgets.opened.encoder_decoder,
        )


def _hints(
    args: Mapping[str, Any],
    counts: Mapping[Modality, Count],
    table: CostTable,
    budgets: BudgetSource,
) -> tuple[dict[Modality, Hint], dict[Modality, str]]:
    """Per modality the first hint whose dummy, as vLLM builds it, costs what may come, or why there
    is none (R3).
    """
    found: dict[Modality, Hint] = {}
    refused: dict[Modality, str] = {}
    for modality in table.modalities():
        heaviest = table.heaviest(modality)
        if heaviest is None or counts[modality].value == 0:
            continue
        why = "it has no size that a hint could name"
        for hint in limits.hint_candidates(heaviest, budgets.opened.audio_rate_hz):
            tried = limits.limit_mm_per_prompt(counts, {**found, modality: hint})
            budget = budgets.of({**args, "limit_mm_per_prompt": tried}, build_dummy=True)
            if limits.hint_is_honest(modality, budget, heaviest):
                found[modality] = hint
                break
            dummy = budget.dummies.get(modality)
            most = max(heaviest.embeds, budget.max_tokens_per_item.get(modality, 0))
            why = "vLLM profiles no item of its own for it"
            if dummy is not None:
                why = f"vLLM would profile {dummy.embeds} tokens where one item may take {most}"
        if modality not in found:
            refused[modality] = why
    return found, refused


def _largest(explored: Explored) -> int:
    """vLLM's own largest item of the knob's modality."""
    return explored.budget.max_tokens_per_item.get(explored.point.knob.modality, 0)
