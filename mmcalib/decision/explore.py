"""Explore the values of each knob, with costs and vLLM's budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any

from mmcalib.checks.facts import Decision, Explored
from mmcalib.configs.opening import without_gpu_args
from mmcalib.decision.measure import EmbedCounter, remeasure
from mmcalib.decision.media_files import Files, prepare_files
from mmcalib.domain.knobs import AreaCap, Knob, Setting, TileCap, Value
from mmcalib.domain.memory import Budget
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ComputeBudget
from mmcalib.errors import VllmRefused
from mmcalib.limits import frontier
from mmcalib.limits.costs import CostTable
from mmcalib.limits.frontier import Point, setting_at
from mmcalib.limits.policy import Policy
from mmcalib.limits.values import Rounding, limit_mm_per_prompt, max_num_batched_tokens
from mmcalib.progress import Progress

# More tokens than any item of a model that cannot chunk its input.
_ROOMY_TOKENS = 1 << 17


@dataclass(frozen=True, slots=True)
class BudgetSource:
    """Makes engine arguments and gets vLLM's budget of them. `context_tokens` replaces the model's
    own context; the user's arguments `given` are part of every configuration.
    """

    host: EngineHost
    opened: ModelInfo
    model_path: str
    policy: Policy
    context_tokens: int | None = None
    files: Files = prepare_files
    given: Mapping[str, Any] = field(default_factory=dict)
    rounding: Rounding = "up"

    def engine_args(
        self, setting: Setting, per_prompt: Mapping[str, Any], largest_embeds: int
    ) -> dict[str, Any]:
        """Return the arguments in the file's order, for a largest item of `largest_embeds`."""
        args: dict[str, Any] = {"limit_mm_per_prompt": dict(per_prompt), **setting.engine_args}
        args["max_model_len"] = self.context_tokens or self.opened.max_model_len
        args["max_num_batched_tokens"] = self.step_tokens(args, largest_embeds)
        others = {n: v for n, v in self.policy.given_values.items() if n not in args}
        return {**args, **others, **self.given}

    def with_values(self, values: Mapping[str, Any]) -> BudgetSource:
        """Return a source whose configurations have these engine arguments of a remedy."""
        own = {name: value for name, value in values.items() if name != "max_model_len"}
        context = values.get("max_model_len", self.context_tokens)
        return replace(self, policy=replace(self.policy, **own), context_tokens=context)

    def step_tokens(self, args: Mapping[str, Any], largest_embeds: int) -> int:
        """Return tokens per step: as given, or vLLM's default rounded to whole largest items."""
        if self.policy.max_num_batched_tokens is not None:
            return self.policy.max_num_batched_tokens
        defaults, chunks = self.opened.serve_defaults, self.opened.chunks_mm_input
        plain = {key: value for key, value in args.items() if key != "max_num_batched_tokens"}
        largest = max(self.budget_of_any_item(plain).max_tokens_per_item.values(), default=0)
        step = defaults["max_num_batched_tokens"], largest, largest_embeds
        return max_num_batched_tokens(*step, chunks_mm_input=chunks, rounding=self.rounding)

    def default_budget(self) -> tuple[Budget, str]:
        """Return the budget of vLLM's defaults, and vLLM's words if it rejects them."""
        try:
            return self.budget_of({}), ""
        except VllmRefused as error:
            return self.budget_of_any_item({}), error.message

    def budget_of_any_item(self, args: Mapping[str, Any]) -> Budget:
        """Return the budget with a step that holds any item, to learn the largest. vLLM rejects a
        smaller step if the model cannot chunk items; an encoder-decoder's may exceed its context.
        """
        if self.opened.chunks_mm_input:
            return self.budget_of(args)
        step = max(self.opened.max_model_len, _ROOMY_TOKENS)
        return self.budget_of({**args, "max_num_batched_tokens": step})

    def budget_of(self, args: Mapping[str, Any], *, build_dummy: bool = False) -> Budget:
        """Return the budget of these arguments. Raises EngineError if vLLM rejects them."""
        # The server's defaults, which may differ from those of this machine.
        defaults = {**self.opened.serve_defaults, "max_model_len": self.opened.max_model_len}
        usable = without_gpu_args({**self.given, **args}, self.opened.device)
        full = {**defaults, "model": self.model_path, **usable}
        return self.host.ask(ComputeBudget(full, build_dummy), "computing the encoder budget")


def explore(
    knob: Knob,
    default: CostTable,
    per_prompt: Mapping[str, Any],
    budgets: BudgetSource,
    progress: Progress,
) -> list[Explored]:
    """Return the knob's values with costs and budgets, ascending, the default included. Those above
    it end where the largest item exceeds the context.
    """
    context = budgets.context_tokens or budgets.opened.max_model_len
    values = knob.values(default.columns_of(knob.modality), budgets.policy)
    explored: list[Explored] = []
    with progress.step(f"trying {knob.name}", len(values)) as task:
        counter = None if knob.bleeds else EmbedCounter.prove(budgets.host, default, knob.modality)
        for value in values:
            # Only one table at a time is in memory: each has an entry per shape.
            table = _cost_at(knob, value, default, budgets, counter)
            point = frontier.make_point(knob, value, table, default)
            task.advance()
            if point.is_beyond_default:
                gains = point.detail > max((e.point.detail for e in explored), default=-1)
                # Values reach the largest clip, but a cap on frames ends at the largest frame.
                if point.max_tokens > context or (isinstance(knob, AreaCap) and not gains):
                    break
                # More tiles may only enlarge images.
                if isinstance(knob, TileCap) and not gains:
                    continue
            args = budgets.engine_args(point.setting, per_prompt, table.largest_embeds)
            explored.append(Explored(point, budgets.budget_of(args), args))
    return explored


def has_any_effect(explored: Sequence[Explored]) -> bool:
    """Return whether any value of one knob changes the default's tokens or budget."""
    outcomes = {
        (e.point.max_tokens, tuple(sorted(e.budget.max_tokens_per_item.items()))) for e in explored
    }
    return len(explored) < 2 or len(outcomes) > 1


def _cost_at(
    knob: Knob,
    value: Value,
    default: CostTable,
    budgets: BudgetSource,
    counter: EmbedCounter | None,
) -> CostTable:
    """Return the costs at one value, counted if possible, else measured where a cap may change."""
    setting = setting_at(knob, value, default.setting)
    if setting == default.setting:
        return default
    if counter and (
        counted := counter.cost_table(setting, knob.changed_mask(counter.usual.shapes, value))
    ):
        return counted
    usual = default.columns_of(knob.modality)
    may_change = knob.changed_mask(usual.shapes, value)
    # The costliest that should not change: if it does, the cap has another meaning.
    witness = usual.take(~may_change).heaviest
    if witness is not None and not knob.bleeds:
        changed = usual.take(may_change).shapes
        table = remeasure(budgets.host, default, setting, [*changed, witness.shape])
        now = table.costs.get(witness.shape)
        if now is not None and now.tokens == witness.tokens:
            return table
    modalities = knob.modality, *knob.bleeds
    every = chain.from_iterable(default.columns_of(modality).shapes for modality in modalities)
    return remeasure(budgets.host, default, setting, every)


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
    again = explore(knob, base, limit_mm_per_prompt(decision.counts, {}), budgets, progress)
    return again if [e.point.value for e in again] == [e.point.value for e in row] else row


def _may_affect(other: Point, knob: Knob) -> bool:
    """Return whether the other chosen value may change items of this knob's modality."""
    if other.knob.is_loader_option and not knob.is_loader_option:
        return False
    affected = (other.knob.modality, *other.knob.bleeds)
    return other.value != other.knob.value and knob.modality in affected
