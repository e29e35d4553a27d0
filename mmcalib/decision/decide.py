"""Choose a configuration: explore options, rate candidates, build a `Decision`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.facts import Decision, Explored
from mmcalib.decision.explore import BudgetSource, explore, has_any_effect
from mmcalib.decision.measure import Sample, measure
from mmcalib.decision.texts import Texts, longest_prompt, smallest_context
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import Knob, Setting, merge_settings
from mmcalib.domain.memory import Budget
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.gate.fit import Fit
from mmcalib.limits.costs import CostTable
from mmcalib.limits.frontier import Point, choose_point, token_levels
from mmcalib.limits.policy import COSTS, FIT, Policy
from mmcalib.limits.values import (
    Count,
    Hint,
    Rounding,
    hint_candidates,
    hint_covers_largest,
    limit_mm_per_prompt,
    token_adequacy,
)
from mmcalib.progress import Progress
from mmcalib.remedies.memory import Remedy
from mmcalib.text import plural

# The most tokens of an item, for each modality that has to shrink.
Tokens: TypeAlias = Mapping[Modality, int]
_FREE: Final[Tokens] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DecisionBuilder:
    """Builds decisions; holds all that does not depend on the chosen points."""

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
    remedies: tuple[Remedy, ...] = ()
    # By setting: some candidates differ only in the step.
    _tables: dict[str, tuple[CostTable, list[Skipped]]] = field(default_factory=dict, repr=False)

    def with_remedy(self, remedy: Remedy) -> DecisionBuilder:
        budgets = self.budgets.with_values(remedy.changes)
        return replace(self, budgets=budgets, remedies=(*self.remedies, remedy))

    def candidates(self, at_most: Tokens = _FREE) -> Iterator[Decision]:
        """Yield configurations of equal quality, the cheapest budget first: the smallest caps that
        shrink no item, with a step rounded to whole items up or down, or to the corpus' largest
        item; then vLLM's default items and step. `at_most` bounds the tokens of a modality's items.
        """
        budgets = self.budgets
        # A model that cannot chunk its input needs room for a few prompt tokens in the step.
        ways: tuple[Rounding, Rounding] = ("up", "down")
        first, second = ways if budgets.opened.chunks_mm_input else ways[::-1]
        capped = self.build(at_most, first)
        yield capped
        most, largest = capped.budget.max_tokens_per_item, capped.table.largest_embeds
        other: Rounding = "none" if largest > max(most.values(), default=0) else second
        step = replace(budgets, rounding=other).step_tokens(capped.engine_args, largest)
        if step != capped.engine_args["max_num_batched_tokens"]:
            yield self.build(at_most, other)
        if not at_most and budgets.policy.keeps_quality and not capped.raises_detail:
            yield self.build(at_most, "none", capped=False)

    def build(self, at_most: Tokens, rounding: Rounding = "up", *, capped: bool = True) -> Decision:
        """Build the policy's configuration for items of at most `at_most` tokens; without `capped`,
        every option keeps its default and has no size hint: vLLM's encoder cache is larger.
        """
        policy, unreadable = self.budgets.policy, list(self.unreadable)
        effective = [e for e in self.explored.values() if has_any_effect(e)]
        idle = [p[0].point.knob for p in self.explored.values() if not has_any_effect(p)]
        chosen = tuple(self._choose(e, at_most) if capped else _default(e) for e in effective)
        setting = merge_settings([self.default.setting, *(point.setting for point in chosen)])
        table, more = self._table(setting)
        unreadable += [s for s in more if s not in unreadable]
        plain = limit_mm_per_prompt(self.counts, {})
        budgets = replace(self.budgets, rounding=rounding)
        engine_args = budgets.engine_args(setting, plain, table.largest_embeds)
        budget = budgets.budget_of(engine_args, build_dummy=True)
        longest = self._longest(table, budget)
        if policy.max_model_len == FIT:
            context = smallest_context(longest, budgets.opened.max_model_len)
            budgets = replace(budgets, context_tokens=context)
            engine_args = budgets.engine_args(setting, plain, table.largest_embeds)
            budget = budgets.budget_of(engine_args, build_dummy=True)
            longest = self._longest(table, budget)
        unhinted = budget
        if capped:
            hints, refused = _find_hints(engine_args, self.counts, table, budgets)
        else:
            why = "2% more KV cache do not fit, or more requests are preempted"
            hints, refused = {}, {m: why for m in table.modalities() if self.counts[m].value}
        if hints:
            engine_args["limit_mm_per_prompt"] = limit_mm_per_prompt(self.counts, hints)
            most = table.largest_embeds
            engine_args["max_num_batched_tokens"] = budgets.step_tokens(engine_args, most)
            budget = budgets.budget_of(engine_args, build_dummy=True)
        return Decision(
            default_table=self.default,
            table=table,
            setting=setting,
            explored=tuple(e for points in self.explored.values() for e in points),
            chosen=chosen,
            ineffective=tuple(idle),
            counts=self.counts,
            hints=hints,
            refused_hints=refused,
            default_budget=self.default_budget,
            default_error=self.default_error,
            budget=budget,
            plain=unhinted,
            adequacy=token_adequacy(engine_args, budget, self.counts),
            engine_args=engine_args,
            unreadable=tuple(unreadable),
            longest=longest,
            rounding=rounding,
            remedies=self.remedies,
        )

    def _table(self, setting: Setting) -> tuple[CostTable, list[Skipped]]:
        if setting == self.default.setting:
            return self.default, []
        if setting.key not in self._tables:
            host, files = self.budgets.host, self.budgets.files
            self._tables[setting.key] = measure(
                host, self.census, setting, self.sample, self.progress, files, before=self.default
            )
        return self._tables[setting.key]

    def _choose(self, explored: Sequence[Explored], tokens: Tokens) -> Point:
        """Choose by policy among caps with which vLLM's largest item covers the corpus' largest:
        below that only a larger step would hold it. If the default's does not, neither need those
        above it. Prefer the default at equal cost: vLLM 0.28 counts the largest item without the
        cap but builds its dummy with it, and so reserves too little.
        """
        policy, at_most = self.budgets.policy, tokens.get(explored[0].point.knob.modality)
        default = _default(explored)
        free = at_most is None and policy.keeps_quality
        covered = any(e.point is default and _covers(e) for e in explored)
        points = [
            e.point
            for e in explored
            if not free
            or e.point is default
            or _covers(e)
            or (e.point.is_beyond_default and not covered)
        ]
        point = choose_point(points, policy, at_most)
        given = policy.max_tokens_per_item is not None
        if given or point.items_downscaled or point.is_beyond_default:
            return point
        by_value = {e.point.value: e for e in explored}
        same = _largest(by_value[point.value]) == _largest(by_value[point.knob.value])
        return default if same else point

    def _longest(self, table: CostTable, budget: Budget) -> Fit | None:
        return longest_prompt(
            self.prompts,
            table,
            self.counts,
            budget,
            self.budgets.policy.text_reserve_tokens,
            self.texts,
            encoder_decoder=self.budgets.opened.encoder_decoder,
        )


def _find_hints(
    args: Mapping[str, Any],
    counts: Mapping[Modality, Count],
    table: CostTable,
    budgets: BudgetSource,
) -> tuple[dict[Modality, Hint], dict[Modality, str]]:
    """Return the first honest size hint per modality, or the reason for none."""
    hints: dict[Modality, Hint] = {}
    refused: dict[Modality, str] = {}
    for modality in table.modalities():
        heaviest = table.heaviest(modality)
        if heaviest is None or counts[modality].value == 0:
            continue
        why = "no hint can describe its size"
        for hint in hint_candidates(heaviest, budgets.opened.audio_rate_hz):
            limit = limit_mm_per_prompt(counts, {**hints, modality: hint})
            budget = budgets.budget_of({**args, "limit_mm_per_prompt": limit}, build_dummy=True)
            if hint_covers_largest(modality, budget, heaviest):
                hints[modality] = hint
                break
            dummy = budget.dummies.get(modality)
            most = max(heaviest.embeds, budget.max_tokens_per_item.get(modality, 0))
            why = "vLLM profiles no item of this modality"
            if dummy is not None:
                why = f"vLLM would profile {dummy.embeds} tokens, but an item may take {most}"
        if modality not in hints:
            refused[modality] = why
    return hints, refused


def _default(explored: Sequence[Explored]) -> Point:
    return next(e.point for e in explored if e.point.value == e.point.knob.value)


def _covers(explored: Explored) -> bool:
    return _largest(explored) >= explored.point.max_embeds


def _largest(explored: Explored) -> int:
    return explored.budget.max_tokens_per_item.get(explored.point.knob.modality, 0)


def count_items(
    opened: ModelInfo, policy: Policy, table: CostTable, prompts: PromptCensus
) -> dict[Modality, Count]:
    """Return items per prompt for each of the model's modalities: as given, counted or assumed."""
    every: dict[Modality, Count] = {}
    for modality, most in opened.modalities.items():
        count = _count(modality, opened, policy, table, prompts)
        if most is not None and count.value > most:
            reason = f"the model takes at most {most}; {count.reason}"
            count = Count(most, reason, "computed", count.exemplar)
        elif count.value == most and count.label == "assumed":
            count = Count(most, f"the model takes at most {most} per prompt", "computed")
        every[modality] = count
    return every


def _count(
    modality: Modality, opened: ModelInfo, policy: Policy, table: CostTable, prompts: PromptCensus
) -> Count:
    own_count = policy.count.get(modality)
    if own_count is not None:
        return Count(own_count, f"given: --count {modality}={own_count}", "given")
    present = table.columns_of(modality)
    if not present:
        why = f"no {modality} in the corpus"
        if any(r.shape.modality == modality for r in table.refusals):
            why = f"vLLM rejects every {modality} of the corpus"
        elif modality in table.failed:
            why = f"vLLM can load no {modality} of the corpus"
        return Count(0, why, "computed")
    if not prompts.prompts():
        reason = "no requests given; set --requests or --count"
        return Count(1, f"one per prompt: {reason}", "assumed")
    share, together = policy.coverage, tuple(opened.modalities)
    if isinstance(share, Mapping):
        share, together = share.get(modality, 1.0), (modality,)
    value = prompts.items_covering(together, share)[modality]
    if value == 0:
        reason = f"no covered request has one, but the corpus holds {modality} items"
        return Count(1, f"one per prompt: {reason}", "assumed")
    total = prompts.prompts()
    why = f"the most in any of {plural(total, 'request')}"
    if share < 1:
        why = f"covers {share:.1%} of {plural(total, 'request')}"
    origin = min(
        entry.exemplar.origin
        for entry in prompts.signatures()
        if entry.signature.items(modality) >= value
    )
    return Count(value, why, "computed", origin)


# Share of the largest KV cache that is nearly as good: less gain turns no option.
_NEARLY_AS_LARGE: Final = 0.98


class MemoryJudge:
    """Judges configurations by the memory of the GPU to serve on; without one, budgets decide."""

    def rejects(self, decision: Decision, *, reserved: bool = False) -> str:
        """Return why it does not serve on the GPU, in memory that startup has `reserved`; or ""."""
        return ""

    def remedies(self, decision: Decision) -> Iterable[Remedy]:
        """Yield remedies for a rejected configuration, the one that costs least first."""
        return ()

    def would_serve(self, decision: Decision) -> str:
        """Return what the user could set to make a rejected configuration serve, as shown."""
        return ""

    def kv_tokens(self, decision: Decision | None) -> int | None:
        """Return tokens of the KV cache, without a decision by default: 0 if vLLM would not start,
        None if unknown.
        """
        return None

    def serves_worse(self, decision: Decision) -> bool:
        """Return whether requests exceed the reserve, or are preempted more than by default."""
        return False

    def slows(self, decision: Decision) -> bool:
        """Return whether requests take clearly more steps than by default."""
        return False

    def spends_reserve(self, decision: Decision) -> bool:
        """Return whether load takes the reserve below vLLM's own slack, unlike by default."""
        return False

    def keep_reserve(self, decision: Decision) -> Remedy | None:
        """Return what leaves vLLM's own slack of the reserve under load; None if nothing does."""
        return None


def decide(
    census: Census,
    prompts: PromptCensus,
    sample: Sample,
    budgets: BudgetSource,
    progress: Progress,
    judge: MemoryJudge,
    texts: Texts,
) -> Decision:
    """Measure the corpus under the default, explore each knob, and choose a configuration.

    Among equal quality the one with the most KV cache wins, if requests run no worse than by
    default. If the judge rejects it, remedies are applied. If none helps, or the context rejects
    it, items shrink by the fewest steps that help.
    """
    base = budgets.policy.loader_setting
    default, unreadable = measure(budgets.host, census, base, sample, progress, budgets.files)
    admitted = count_items(budgets.opened, budgets.policy, default, prompts)
    plain = limit_mm_per_prompt(admitted, {})
    present = [k for k in budgets.opened.knobs if default.columns_of(k.modality)]
    # Any option that the user set for a loader may decide the frames.
    every = [k for k in present if not (k.is_loader_option and k.path[0] in base.media_io_kwargs)]

    def explore_knob(one: Knob) -> list[Explored]:
        return explore(one, default, plain, budgets, progress)

    # Loaders come first: the number of frames decides what a cap does to a video.
    explored = {k.name: explore_knob(k) for k in every if k.is_loader_option}
    rows = ([e.point for e in points] for points in explored.values())
    loading = merge_settings([base, *(choose_point(row, budgets.policy).setting for row in rows)])
    if loading != base:
        default, more = measure(budgets.host, census, loading, sample, progress, budgets.files)
        unreadable += [skipped for skipped in more if skipped not in unreadable]
    explored |= {k.name: explore_knob(k) for k in every if not k.is_loader_option}
    default_budget, default_error = budgets.default_budget()
    builder = DecisionBuilder(
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
    ranked = _rank(builder, judge)
    first = ranked[0]
    too_long = _too_long(first)
    reason = too_long or judge.rejects(first)
    if not reason:
        return _first_that_serves(judge, ranked) or _with_reserve(first, 0, judge) or first
    if not too_long and (found := _with_remedies(builder, judge, ranked)):
        return found

    def serving(at_most: Tokens) -> Decision | None:
        ranked = _rank(builder, judge, at_most)
        if _too_long(ranked[0]):
            return None
        found = _first_that_serves(judge, ranked)
        return found or _with_remedies(builder, judge, ranked, at_most)

    turned = [[e.point for e in row] for row in explored.values() if has_any_effect(row)]
    chosen = _shrink(turned, budgets.policy, serving)
    if chosen is None:
        return first
    if too_long:
        return replace(chosen, forced=reason, forced_by="context")
    return replace(chosen, forced=reason, forced_by="memory", unforced=judge.would_serve(first))


def _shrink(
    turned: Sequence[Sequence[Point]], policy: Policy, serving: Callable[[Tokens], Decision | None]
) -> Decision | None:
    """Return what serves with the largest items: all of one bound, then each modality of its own,
    those that lose most first. None if even the smallest items do not serve.
    """
    modalities = {points[0].knob.modality for points in turned}
    found = _largest_serving(token_levels(turned, policy), _FREE, modalities, serving)
    if found is None:
        return None
    level, chosen = found
    at_most = dict.fromkeys(modalities, level)
    kept = {
        m: [p.mean_retention for p in chosen.chosen if p.knob.modality == m] for m in modalities
    }
    for modality in sorted(modalities, key=lambda m: min(kept[m])):
        others = {m: tokens for m, tokens in at_most.items() if m != modality}
        if not others or min(kept[modality]) == 1:
            continue
        if whole := serving(others):
            chosen, at_most = whole, others
            continue
        own = [points for points in turned if points[0].knob.modality == modality]
        more = [tokens for tokens in token_levels(own, policy) if tokens > level]
        if found := _largest_serving(more, others, {modality}, serving):
            at_most[modality], chosen = found
    return chosen


def _largest_serving(
    levels: Sequence[int],
    others: Tokens,
    modalities: Iterable[Modality],
    serving: Callable[[Tokens], Decision | None],
) -> tuple[int, Decision] | None:
    """Return the largest of these levels that serves, beside the bounds of `others`, and how.

    Smaller items take no more memory, except for profiles rounded to whole items. So if any level
    serves, the last one does, and bisection finds the first. Each try takes seconds.
    """
    by_level: dict[int, Decision | None] = {}

    def serves(level: int) -> bool:
        by_level[level] = serving({**others, **dict.fromkeys(modalities, level)})
        return by_level[level] is not None

    if not levels or not serves(levels[-1]):
        return None
    level = levels[bisect_left(levels, True, hi=len(levels) - 1, key=serves)]
    chosen = by_level[level]
    return None if chosen is None else (level, chosen)


def _rank(builder: DecisionBuilder, judge: MemoryJudge, at_most: Tokens = _FREE) -> list[Decision]:
    """Rank candidates: first those with nearly the largest KV cache, at least the default's, the
    step nearest to vLLM's default first; then the others. vLLM's own items and step come before
    all if they are among them and reserved, or if none exceeds the default. Only one without a GPU.
    """
    rated: list[tuple[Decision, int]] = []
    for decision in builder.candidates(at_most):
        tokens = judge.kv_tokens(decision)
        if tokens is None:
            return [rated[0][0] if rated else decision]
        rated.append((decision, tokens))
    most, default = max(tokens for _, tokens in rated), judge.kv_tokens(None) or 0
    last = rated[-1][0]
    plain = last.rounding == "none" and last.setting == last.default_table.setting
    least = min(most, max(most * _NEARLY_AS_LARGE, default))
    name, usual = "max_num_batched_tokens", builder.budgets.opened.serve_defaults
    own = plain and 0 < most <= default
    own = own or (plain and rated[-1][1] >= least > 0 and not judge.rejects(last, reserved=True))

    def order(pair: tuple[Decision, int]) -> tuple[int, int]:
        decision, tokens = pair
        if own and decision is last:
            return 0, 0
        if tokens >= least and not own:
            return 1, abs(decision.engine_args[name] - usual[name])
        return 2, max(0, default - tokens)

    return [decision for decision, _ in sorted(rated, key=order)]


def _first_that_serves(judge: MemoryJudge, ranked: Iterable[Decision]) -> Decision | None:
    """Return the first that serves no less than the defaults, best without its reserve spent."""
    least, tight = judge.kv_tokens(None) or 0, None
    for one in ranked:
        if _serves_less(one, least, judge):
            continue
        if not judge.spends_reserve(one):
            if tight is None:
                return one
            more = round((judge.kv_tokens(one) or 0) / _NEARLY_AS_LARGE)
            return _with_reserve(tight, max(least, more), judge) or one
        tight = tight or one
    return tight and (_with_reserve(tight, least, judge) or tight)


def _with_reserve(tight: Decision, least: int, judge: MemoryJudge) -> Decision | None:
    """Return it with the reserve that load leaves by default, if that holds `least` tokens."""
    if not judge.spends_reserve(tight) or not (remedy := judge.keep_reserve(tight)):
        return None
    args = {**tight.engine_args, **remedy.changes}
    kept = replace(tight, engine_args=args, remedies=(*tight.remedies, remedy))
    return None if _serves_less(kept, least, judge) or judge.spends_reserve(kept) else kept


def _serves_less(decision: Decision, least: int, judge: MemoryJudge) -> bool:
    tokens = judge.kv_tokens(decision) or least
    return tokens < least or bool(judge.rejects(decision)) or judge.serves_worse(decision)


# Configurations with remedies to try, and how many remedies one may have.
_MOST_TRIED: Final = 12
_MOST_REMEDIES: Final = 4


def _with_remedies(
    builder: DecisionBuilder,
    judge: MemoryJudge,
    ranked: Sequence[Decision],
    at_most: Tokens = _FREE,
) -> Decision | None:
    """Return a configuration that serves: the first, or the one with the fewest remedies, of these
    one that is no slower, at the least cost, with the most KV cache. None if there is none.
    """

    def rate(serving: Decision, cost: int) -> tuple[bool, int, int]:
        return judge.slows(serving), cost, -(judge.kv_tokens(serving) or 0)

    if not judge.rejects(ranked[0]):
        return ranked[0]
    best = next((one for one in ranked if not judge.rejects(one)), None)
    least = None if best is None else rate(best, COSTS.index("KV cache"))
    tried, level = 0, [(builder, ranked[0])]
    for _ in range(_MOST_REMEDIES):
        deeper = []
        for before, rejected in level:
            for remedy in judge.remedies(rejected):
                its_cost = COSTS.index(remedy.cost)
                if tried == _MOST_TRIED or (least is not None and (False, its_cost) > least[:2]):
                    break
                tried += 1
                remedied = before.with_remedy(remedy)
                candidates = _rank(remedied, judge, at_most)
                serving = next((one for one in candidates if not judge.rejects(one)), None)
                deeper.append((remedied, candidates[0]))
                if serving is None or _too_long(serving):
                    continue
                rating = rate(serving, its_cost)
                if least is None or rating < least:
                    best, least = serving, rating
        if best is not None:
            return best
        level = deeper
    return None


def _too_long(decision: Decision) -> str:
    longest = decision.longest
    if longest is None or longest.fits_answers:
        return ""
    needed = f"{longest.needed_tokens:,} of {longest.max_model_len:,} tokens"
    return f"{longest.longest.origin} and its answer would take {needed}"
