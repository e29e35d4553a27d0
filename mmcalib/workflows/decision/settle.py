"""The configuration of chosen points: limits, context, hints and step, with vLLM's budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.derive import limits
from mmcalib.derive.costs import CostTable
from mmcalib.derive.fit import Fit
from mmcalib.derive.frontier import Point, choose
from mmcalib.derive.limits import Count, Hint, Rounding, adequacy
from mmcalib.derive.policy import FIT
from mmcalib.domain.budget import Budget
from mmcalib.domain.items import Skipped
from mmcalib.domain.setting import Setting, merged
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
    # By setting: candidates differ in the step alone, too.
    _tables: dict[str, tuple[CostTable, list[Skipped]]] = field(default_factory=dict, repr=False)

    def frontiers(self) -> list[list[Point]]:
        """The points of each knob that has an effect."""
        return [[e.point for e in points] for points in self.explored.values() if moves(points)]

    def candidates(self, at_most: int | None = None) -> Iterator[Decision]:
        """Configurations of equal quality, those that cost least by vLLM's budget first: the
        smallest caps that take nothing off an item, with steps of whole items, rounded either way,
        or as large as the corpus' largest item where vLLM's own is smaller; and vLLM's own largest
        items and step. With `at_most` items have at most so many tokens.
        """
        budgets = self.budgets
        # A model that cannot chunk its input has prompts of a few tokens beside it.
        ways: tuple[Rounding, Rounding] = ("up", "down")
        first, second = ways if budgets.opened.chunks_mm_input else ways[::-1]
        capped = self.settle(at_most, first)
        yield capped
        most, largest = capped.budget.max_tokens_per_item, capped.table.largest_embeds
        other: Rounding = "none" if largest > max(most.values(), default=0) else second
        step = replace(budgets, rounding=other).batched(capped.engine_args, largest)
        if step != capped.engine_args["max_num_batched_tokens"]:
            yield self.settle(at_most, other)
        if at_most is None and budgets.policy.keeps_quality:
            yield self.settle(None, "none", capped=False)

    def settle(
        self, at_most: int | None, rounding: Rounding = "up", *, capped: bool = True
    ) -> Decision:
        """The configuration of the policy's choice, of items of `at_most` tokens; or, not `capped`,
        of none but the defaults of each option.
        """
        policy, unreadable = self.budgets.policy, list(self.unreadable)
        turned = [e for e in self.explored.values() if moves(e)]
        chosen = tuple(self._chosen(e, at_most) if capped else _default(e) for e in turned)
        setting = merged([self.default.setting, *(point.setting for point in chosen)])
        table, more = self._table(setting)
        unreadable += [s for s in more if s not in unreadable]
        plain = limits.limit_mm_per_prompt(self.counts, {})
        budgets = replace(self.budgets, rounding=rounding)
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
            rounding=rounding,
        )

    def _table(self, setting: Setting) -> tuple[CostTable, list[Skipped]]:
        """What every shape costs under the setting, and the files that turn out unreadable."""
        if setting == self.default.setting:
            return self.default, []
        if setting.key not in self._tables:
            host, files = self.budgets.host, self.budgets.files
            self._tables[setting.key] = measure(
                host, self.census, setting, self.sample, self.progress, files, before=self.default
            )
        return self._tables[setting.key]

    def _chosen(self, explored: Sequence[Explored], at_most: int | None) -> Point:
        """The policy's choice among the caps under which vLLM's own largest item is as large as
        the corpus' largest: below that, only a larger step would hold the item. The default, where
        nobody asked for a cap and it would take nothing off any item, nor off vLLM's own largest:
        0.28 counts that without the cap, but builds its dummy under it, and would reserve less than
        it schedules.
        """
        policy = self.budgets.policy
        usual = _default(explored)
        free = at_most is None and policy.keeps_quality
        points = [e.point for e in explored if not free or e.point is usual or _covers(e)]
        point = choose(points, policy, at_most)
        if policy.max_tokens_per_item is not None or point.items_downscaled:
            return point
        at = {e.point.value: e for e in explored}
        same = _largest(at[point.value]) == _largest(at[point.knob.value])
        return usual if same else point

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


def _default(explored: Sequence[Explored]) -> Point:
    return next(e.point for e in explored if e.point.value == e.point.knob.value)


def _covers(explored: Explored) -> bool:
    return _largest(explored) >= explored.point.max_embeds


def _largest(explored: Explored) -> int:
    """vLLM's own largest item of the knob's modality."""
    return explored.budget.max_tokens_per_item.get(explored.point.knob.modality, 0)
