"""Rehearse fixes on one GPU and check that the startup reserve holds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mmcalib.checks.check import Check
from mmcalib.checks.facts import JudgedConfig
from mmcalib.checks.limits import LIMIT, size_hint, without_hints
from mmcalib.derive.demand import Demand, EngineSettings, ObservedOom, Shortfall, compare_oom
from mmcalib.derive.fix_search import Evaluate, SearchResult, find_cheapest
from mmcalib.derive.fixes import (
    COSTS,
    LAST_SEVERITY,
    NO_CONSTRAINTS,
    SIZE_HINT,
    UTILIZATION,
    Constraints,
    Cost,
    Facts,
    Fix,
    Goal,
    Outcome,
    changed_args,
    propose_fixes,
)
from mmcalib.derive.limits import Count
from mmcalib.derive.logs import StartupLog
from mmcalib.domain.memory import Budget, RehearsedMemory, floor_utilization
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.errors import EngineError
from mmcalib.memory.checks import predicted_shortfall
from mmcalib.memory.figures import rehearsed_adequacy
from mmcalib.memory.rehearse import MemoryPrediction, Predicted
from mmcalib.memory.worst_steps import find_remedies, list_demands, rehearse_worst_steps
from mmcalib.progress import Progress
from mmcalib.text import gib
from mmcalib.workflows.judging import judge_reserve


@dataclass(frozen=True, slots=True)
class FixTrials:
    """A configuration, its goal and what must stay. Every combination includes the `required`
    fixes; `oom` is the shortfall of the log's server when it ran out of memory.
    """

    prediction: MemoryPrediction
    engine_args: Mapping[str, Any]
    goal: Goal
    constraints: Constraints = NO_CONSTRAINTS
    required: tuple[Fix, ...] = ()
    oom: ObservedOom | None = None

    def changes(self, fixes: tuple[Fix, ...]) -> dict[str, Any]:
        """Return the engine arguments that the fixes change, each with its whole new value."""
        values = changed_args(self.engine_args, (*self.required, *fixes))
        names = [name for fix in (*fixes, *self.required) for name in fix.changes]
        return {name: values[name] for name in dict.fromkeys(names)}

    def args(self, fixes: tuple[Fix, ...]) -> dict[str, Any]:
        """Return all engine arguments with the fixes applied."""
        return {**self.engine_args, **self.changes(fixes)}

    def rehearse(self, fixes: tuple[Fix, ...]) -> RehearsedMemory:
        """Raises EngineError if vLLM rejects the fixes or the rehearsal fails."""
        return self.prediction.rehearse(self.args(fixes))

    def outcome(self, fixes: tuple[Fix, ...]) -> Outcome:
        try:
            answer = self.rehearse(fixes)
        except EngineError as error:
            return Outcome(False, 0, error.message)
        length = answer.budget.max_model_len if answer.budget else 0
        return Outcome(self.goal.is_reached(answer), self.goal.lacking_bytes(answer, length))

    def find_rehearsal(self, fixes: tuple[Fix, ...] = ()) -> RehearsedMemory | None:
        """Return the rehearsal of these fixes, or None if vLLM rejected them or it never ran."""
        answer = self.prediction.find_result(self.args(fixes))
        return answer if isinstance(answer, RehearsedMemory) else None

    def largest_items(self, fixes: tuple[Fix, ...] = ()) -> Mapping[Modality, int]:
        """Tokens of vLLM's largest item per served modality, if known."""
        answer = self.find_rehearsal(fixes)
        return answer.budget.max_tokens_per_item if answer and answer.budget else {}


# A rehearsal takes about two seconds, and users wait for about a minute. Worst steps add to that.
MOST_REHEARSALS: Final = 25
# To find alternatives once the goal is reached.
MORE_REHEARSALS: Final = 10


def search_fixes(
    bench: FixTrials, facts: Facts, progress: Progress, outcome: Evaluate | None = None
) -> tuple[list[Fix], SearchResult]:
    """Return all fixes and the cheapest combination by `outcome` (default: the bench's)."""
    remaining = MOST_REHEARSALS if outcome else MOST_REHEARSALS - bench.prediction.count
    outcome = outcome or bench.outcome
    base = outcome(())
    with progress.step("rehearsing fixes", remaining + MORE_REHEARSALS) as task:
        proposed = propose_fixes(bench.engine_args, facts, bench.goal, bench.constraints)
        fixes = _price_refusals(proposed, bench)

        def evaluate(chosen: tuple[Fix, ...]) -> Outcome:
            task.advance()
            return outcome(chosen)

        return fixes, find_cheapest(fixes, base, evaluate, remaining, MORE_REHEARSALS)


def _price_refusals(fixes: list[Fix], bench: FixTrials) -> list[Fix]:
    """Price caps that make vLLM reject other items: Qwen2-VL's image cap also shrinks videos."""
    refused: dict[str, str] = {}
    for fix in fixes:
        if fix.shrinks is None or not fix.alone:
            continue
        bench.outcome((fix,))
        for modality in find_rejected(fix, bench):
            refused[fix.knob] = f"; vLLM rejects larger {modality} items: its largest shrinks too"
    return [
        replace(
            fix,
            cost="requests",
            price=fix.price + refused[fix.knob],
            severity=LAST_SEVERITY + fix.level,
        )
        if fix.knob in refused
        else fix
        for fix in fixes
    ]


def find_rejected(fix: Fix, bench: FixTrials) -> dict[Modality, tuple[int, int]]:
    """Return modalities whose largest items a rehearsed fix rejects: tokens before and after."""
    served = bench.largest_items((fix,))
    return {
        modality: (most, served[modality])
        for modality, most in bench.largest_items().items()
        if modality != fix.shrinks and 0 < served.get(modality, 0) < most
    }


Verdict = Literal["reached already", "reached", "under-reserved", "out of reach"]

_REMEDY: Final = (
    "another --gpu, a lower --goal, or `mmcalib run --gpu`, which caps items by your own"
)


@dataclass(frozen=True, slots=True)
class JudgedFixes:
    """One configuration's reserve check; `lacking_bytes` is the shortfall after the log's OOM."""

    check: Check
    shortfall: Shortfall | None
    configuration: JudgedConfig
    rehearsed: RehearsedMemory
    lacking_bytes: int = 0

    @property
    def holds(self) -> bool:
        return self.check.status != "fail"


@dataclass(frozen=True, slots=True)
class SafeChoice:
    """A verdict and its combinations; they reserve enough unless it is "under-reserved"."""

    verdict: Verdict
    best: SearchResult


def judge_fixes(bench: FixTrials, fixes: tuple[Fix, ...] = ()) -> JudgedFixes | None:
    """Check the reserve under these fixes with vLLM's dummies; None if unrehearsed or no media."""
    answer = bench.find_rehearsal(fixes)
    if answer is None or answer.budget is None:
        return None
    config, predicted = _predict(bench, fixes, answer, answer.budget)
    command = shlex.join(["mmcalib", "rehearse", "--model", str(bench.engine_args["model"])])
    check = judge_reserve(predicted, config, command)
    short, missing = predicted_shortfall(predicted, config), 0
    if (oom := bench.oom) is not None:
        # The log's shortfall decides if the reserve check alone passes.
        missing = oom.missing_bytes(answer, short)
        if missing > 0:
            need = f"{gib(missing)} more must stay free"
            detail = f"{need}; {check.detail}" if check.status == "fail" else need
            check = replace(check, status="fail", detail=detail)
        else:
            more = gib(oom.lacking_bytes - missing)
            detail = f"{check.detail}; {more} more stay free than on the log's server"
            check = replace(check, detail=f"{detail}, which was short of {gib(oom.lacking_bytes)}")
    if check.status == "fail":
        check = replace(check, remedy=_REMEDY)
    return JudgedFixes(check, short, config, answer, max(0, missing))


def _predict(
    bench: FixTrials, fixes: tuple[Fix, ...], answer: RehearsedMemory, budget: Budget
) -> tuple[JudgedConfig, Predicted]:
    args, prediction = bench.args(fixes), bench.prediction
    # vLLM's budget omits modalities that it does not serve; a missing limit admits its maximum.
    limited = {m: 0 for m in MODALITIES if m in (args.get(LIMIT) or {})}
    counts = limited | budget.max_items_per_prompt
    config = JudgedConfig(
        engine_args=args,
        counts={m: Count(count, "", "computed") for m, count in counts.items()},
        budget=budget,
        plain=budget,
        adequacy=rehearsed_adequacy(answer, budget),
    )
    steps = rehearse_worst_steps(config, prediction.rehearse_all)
    failure = prediction.failure
    return config, Predicted(prediction.gpu, None, answer, steps=steps, failure=failure)


def observe_oom(bench: FixTrials, log: StartupLog) -> ObservedOom | None:
    """Return the log's worst OOM, if any. Raises EngineError if it cannot be rehearsed."""
    errors = [(failure.oom, failure.phase) for failure in log.failures if failure.oom]
    if not errors:
        return None
    answer = bench.rehearse(())
    short, every = None, list[Demand]()
    if answer.budget is not None:
        configuration, predicted = _predict(bench, (), answer, answer.budget)
        short = predicted_shortfall(predicted, configuration)
        every = list(list_demands(configuration, answer, predicted.steps))
    if log.kv_cache_bytes is not None:
        answer = replace(answer, kv_cache_bytes=log.kv_cache_bytes)
    observed = (compare_oom(cause, phase, answer, short, every) for cause, phase in errors)
    return max(observed, key=lambda one: one.lacking_bytes)


def describe_oom(oom: ObservedOom) -> str:
    """Say which step took the memory, and how much was outside PyTorch."""
    words = f"the log's server ran out of memory{f' ({oom.phase})' if oom.phase else ''}"
    if oom.before_kv_cache and oom.spare_bytes > oom.lacking_bytes:
        words += f", though its rehearsal leaves {gib(oom.spare_bytes)} free then: "
        words += "another process used that GPU"
    if oom.step_bytes is not None:
        words += f": its step took {gib(oom.step_bytes)} above the model and the KV cache"
    if oom.step_modality is not None:
        words += f", as much as {oom.step_tokens:,} tokens of {oom.step_modality} ("
        words += f"{oom.step_items} of the largest); one step encodes at most "
        words += f"{oom.step_limit_tokens:,}"
    if oom.outside_torch_bytes is not None:
        words += f"; {gib(oom.outside_torch_bytes)} were outside PyTorch"
    return words


def choose_safe(bench: FixTrials, search: SearchResult) -> SafeChoice:
    """Choose the first combination that the startup reserve covers, mended if necessary."""
    if not search.reached:
        return SafeChoice("out of reach", search)
    candidates = (search.best, *search.others)
    every = [_mend_reserve(bench, fixes) for fixes in candidates]
    safe = list(dict.fromkeys(fixes for fixes in every if fixes is not None))
    if not safe:
        return SafeChoice("under-reserved", search)
    mended = tuple(fixes for fixes in safe if fixes not in candidates)
    # A mended combination may work without one of its fixes; every other one needs all of its own.
    proven = search.proven and (safe[0] == search.best or not search.best)
    best = replace(search, best=safe[0], others=tuple(safe[1:]), proven=proven, repaired=mended)
    changes = bench.required or best.best
    return SafeChoice("reached" if changes else "reached already", best)


def safe_outcome(bench: FixTrials, fixes: tuple[Fix, ...]) -> Outcome:
    """Return an outcome that is reached only if the startup reserve holds too, mended or not."""
    outcome = bench.outcome(fixes)
    if not outcome.reached or _mend_reserve(bench, fixes) is not None:
        return outcome
    judged = judge_fixes(bench, fixes)
    short = judged.shortfall.nbytes if judged and judged.shortfall else 0
    return Outcome(False, max(1, short, judged.lacking_bytes if judged else 0))


def _mend_reserve(bench: FixTrials, fixes: tuple[Fix, ...]) -> tuple[Fix, ...] | None:
    """Add engine values to the fixes if the reserve is short; None if nothing makes it hold."""
    judged = judge_fixes(bench, fixes)
    if judged is None or judged.holds:
        return fixes
    for mend in sorted(_mends(bench, judged), key=lambda fix: COSTS.index(fix.cost)):
        mended = _with(fixes, mend)
        mended_judged = judge_fixes(bench, mended) if bench.outcome(mended).reached else None
        if mended_judged is not None and mended_judged.lacking_bytes and mend.knob != UTILIZATION:
            # The step's need is reserved now, but the log's server was short of more than that.
            lower = next(_lower_utilization(bench, mended_judged), None)
            mended = _with(mended, lower) if lower else mended
            mended_judged = judge_fixes(bench, mended) if bench.outcome(mended).reached else None
        if mended_judged is not None and mended_judged.holds:
            return mended
    return None


def _with(fixes: tuple[Fix, ...], mend: Fix) -> tuple[Fix, ...]:
    return (*(fix for fix in fixes if fix.knob not in mend.changes), mend)


def _mends(bench: FixTrials, judged: JudgedFixes) -> Iterator[Fix]:
    if judged.shortfall is None or judged.shortfall.passes:
        yield from _lower_utilization(bench, judged)
        return
    ask = bench.prediction.rehearse_all
    for remedy in find_remedies(judged.shortfall, judged.configuration, ask):
        less = judged.rehearsed.kv_cache_bytes - remedy.rehearsed.kv_cache_bytes
        mend = _mend(remedy.engine, judged.configuration.budget, less)
        if bench.constraints.allows(mend):
            yield mend


def _lower_utilization(bench: FixTrials, judged: JudgedFixes) -> Iterator[Fix]:
    """Yield a lower GPU share for vLLM that frees the shortfall of the log's server."""
    if bench.oom is None or bench.oom.before_kv_cache or not judged.lacking_bytes:
        return
    rehearsed = judged.rehearsed
    room = rehearsed.requested_bytes - judged.lacking_bytes
    utilization = floor_utilization(room, rehearsed.total_bytes)
    less = rehearsed.requested_bytes - round(utilization * rehearsed.total_bytes)
    fix = Fix(
        name=f"{UTILIZATION}={utilization:g}",
        knob=UTILIZATION,
        changes={UTILIZATION: utilization},
        cost="KV cache",
        price=f"{gib(less)} less, which stays free for such a step",
    )
    if utilization > 0 and bench.constraints.allows(fix):
        yield fix


def without_trap_hints(bench: FixTrials) -> FixTrials:
    """Drop size hints that shrink vLLM's profile but not the items that it admits."""
    limits = bench.engine_args.get(LIMIT) or {}
    hinted = [m for m in MODALITIES if size_hint(limits, m)]
    plain = _drop_hints(bench, hinted)
    before, after = bench.largest_items(), plain.largest_items()
    traps = [m for m in hinted if before.get(m) and before.get(m) == after.get(m)]
    cleaned = plain if traps == hinted else _drop_hints(bench, traps)
    unhinted_memory, hinted_memory = cleaned.find_rehearsal(), bench.find_rehearsal()
    if cleaned is bench or unhinted_memory is None or hinted_memory is None:
        return bench
    *before_it, fix = cleaned.required
    less = hinted_memory.kv_cache_bytes - unhinted_memory.kv_cache_bytes
    if less > 0:
        fix = replace(fix, cost="KV cache", price=f"{gib(less)} less: {fix.price}")
    elif bench.outcome(()).reached:
        return bench
    return replace(bench, required=(*before_it, fix))


def _drop_hints(bench: FixTrials, modalities: Sequence[Modality]) -> FixTrials:
    """Return the bench without these size hints, rehearsed, or as it is if they must stay."""
    limits, plain = bench.engine_args.get(LIMIT) or {}, without_hints(bench.engine_args)
    without: dict[str, dict[str, int | None]] = {
        modality: {"count": plain[LIMIT][modality], **dict.fromkeys(size_hint(limits, modality))}
        for modality in modalities
    }
    fix = Fix(
        name=f"no size hint for {', '.join(without)}",
        knob=f"no {SIZE_HINT}",
        changes={LIMIT: without},
        cost="nothing",
        price=f"vLLM's profile reserves for the largest {' and '.join(without)} that it admits",
    )
    if not without or not bench.constraints.allows(fix):
        return bench
    unhinted_bench = replace(bench, required=(*bench.required, fix))
    unhinted_bench.outcome(())
    return unhinted_bench


def _mend(engine: EngineSettings, before: Budget, less_kv_cache: int) -> Fix:
    """Make a fix of engine values; it costs `less_kv_cache` bytes of KV cache."""
    seqs, batch = engine.max_num_seqs, engine.max_num_batched_tokens
    cost: Cost = "KV cache" if less_kv_cache > 0 else "nothing"
    prices = []
    if seqs is not None:
        less = seqs < before.max_num_seqs
        cost = "speed" if less else cost
        many = f"vLLM reserves for up to {seqs} requests at once"
        prices.append(f"at most {seqs} requests run at once" if less else many)
    if batch is not None:
        less = batch < before.max_num_batched_tokens
        cost = "speed" if less else cost
        reads = f"vLLM reads prompts {batch:,} tokens at a time"
        prices.append(f"{reads}: slower first answers" if less else f"{reads}, which it reserves")
    if less_kv_cache > 0:
        prices.append(f"{gib(less_kv_cache)} less for the KV cache")
    return Fix(
        name=", ".join(f"{name}={value}" for name, value in engine.values.items()),
        knob="reserve",
        changes=engine.values,
        cost=cost,
        price="; ".join(prices),
    )
