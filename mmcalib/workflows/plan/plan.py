"""Make a plan: rehearse remedies on one GPU until they reach the goal and the reserve holds."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final

from mmcalib.checks import reserve
from mmcalib.checks.check import Check, RemedyStyle
from mmcalib.checks.facts import Alternatives, CheckFacts, JudgedConfig
from mmcalib.configs import opening
from mmcalib.configs.read import WrittenConfiguration, read_configuration
from mmcalib.domain.knobs import Knob
from mmcalib.domain.memory import Budget, Division, RehearsedMemory, floor_utilization
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.errors import EngineError, MmcalibError, ModelError, UsageError
from mmcalib.limits.demand import Demand, ObservedOom, Shortfall, compare_oom
from mmcalib.limits.policy import COSTS
from mmcalib.limits.values import LIMIT, Count
from mmcalib.logs.starts import StartupLog
from mmcalib.models.catalogue import quantized_twins
from mmcalib.models.cut import read_config
from mmcalib.models.gpus import AUTO, Gpu, resolve_gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.prediction import worst_steps
from mmcalib.prediction.rehearse import (
    MemoryPrediction,
    Predicted,
    Rehearsals,
    memory_figures,
    rehearsed_adequacy,
)
from mmcalib.progress import Progress, Silent
from mmcalib.remedies import memory as r
from mmcalib.remedies.log import stated_remedies
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Combination, Plan, TriedFixes, Verdict
from mmcalib.text import gib
from mmcalib.version import __version__
from mmcalib.workflows.judging import explain_unrehearsed
from mmcalib.workflows.plan import from_log

_NO_CORPUS: Final = (
    "an item takes no more memory than vLLM's largest item of the same token count; "
    "`mmcalib validate --data DIR` also checks padded and tiled items, and retained batches"
)
# Below this, an anchor is rounding; above this share of the GPU, the log's may be another one.
_LEAST_ANCHOR: Final = 8 << 20
_MOST_ANCHOR: Final = 0.05


def plan(
    model: str | None = None,
    *,
    gpu: str | Gpu | None = None,
    config: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
    goal: str = "fits",
    keep: Sequence[str] = (),
    server_log: from_log.ServerLog | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Find the least memory fixes that reach the goal on `gpu`, rehearsed; needs no GPU.

    The configuration comes from `flags` of `vllm serve`, then from the file `config`, then from a
    server's log. `gpu` defaults to the log's GPU, then to this
    machine's. No fix changes an option in `keep` (`kv_cache_dtype`) or lowers it below a given
    value (`max_model_len=32k`). Raises `mmcalib.errors.MmcalibError`.
    """
    progress = progress or Silent()
    target, kept = r.parse_goal(goal), r.parse_kept(keep)
    device = resolve_gpu(gpu) if isinstance(gpu, str) else gpu
    written = read_configuration(Path(config) if config else None, flags, model)
    start = server_log.log if server_log else None
    # At once: vLLM takes long to import.
    device, resolved = _find_subject(start, device, written, progress)
    with (
        Rehearsals(device, on_note=progress.note, on_log=progress.log) as rehearsals,
        opening.add_config_hints(written, device),
        MemoryPrediction(device, rehearsals) as prediction,
    ):
        parsed = opening.parse_configuration(rehearsals, written).engine_args
        args = {**parsed, "model": resolved.path}
        logged, measured, notes = dict[str, Any](), None, list[str]()
        ignored, required = tuple[str, ...](), r.Remedies()
        model_config = read_config(Path(resolved.path))
        if server_log and start:
            logged, ignored = server_log.engine_args(opening.list_options(rehearsals).engine)
            logged["model"] = resolved.path
            args, required = {**logged, **args}, stated_remedies(start, kept)
            if from_log.is_comparable(start, device):
                with progress.step(f"rehearsing the log's configuration on {device.name}"):
                    measured, notes = measure_log(start, rehearsals, logged, model_config)
        trials = Trials(prediction, args, target, kept, required)
        with progress.step(f"rehearsing on {device.name}"):
            base = trials.rehearse(())
            if start is not None:
                notes = [*from_log.notes_of(start, device, base.vllm, ignored), *notes]
                known = replace(trials, engine_args=logged) if measured else trials
                trials = replace(trials, oom=observe_oom(known, start))
            now, judged = trials.outcome(()), trials.judge((), base)
            trials = trials if now.reached else without_trap_hints(trials)
        search = _search(trials, rehearsals, resolved, progress)
        verdict: Verdict = "out of reach"
        if now.reached and not required:
            verdict = "reached already"
            if start and start.failures and measured and args == logged:
                verdict = "not reproduced"
        elif search.outcome.reached or search.outcome.starts:
            verdict = "reached" if search.outcome.reached else "under-reserved"
        best = combine(search, trials) if verdict == "reached" else None
        observed = describe_oom(trials.oom, base.division) if trials.oom else None
        return Plan(
            goal=f"{target}, and does not run out of memory" if trials.oom else str(target),
            kept=list(keep),
            verdict=verdict,
            reserved=reserve_result(judged, best, observed),
            memory=memory_figures(base, device),
            lacking_bytes=now.lacking_bytes,
            tried=[_tried(remedies, result, trials) for remedies, result in search.tried],
            combination=best,
            least="" if best else _least(search.outcome, resolved, model_config),
            log=server_log.answer(device, kept) if server_log else None,
            oom=trials.oom,
            logged=memory_figures(measured, device) if measured else None,
            notes=notes,
            anchored_bytes=-rehearsals.beside_bytes or None,
            model=resolved.id,
            source=resolved.source,
            config="" if written.source is None else str(written.source),
            gpu=device.name,
            capability=device.compute_capability,
            vllm=base.vllm,
            mmcalib=__version__,
            rehearsals=prediction.count,
            assumptions=[*base.assumptions, _NO_CORPUS, *resolved.notes],
        )


def _find_subject(
    log: StartupLog | None, gpu: Gpu | None, written: WrittenConfiguration, progress: Progress
) -> tuple[Gpu, ResolvedModel]:
    """Find the GPU and the model. Raises UsageError that asks for both at once."""
    if log is None:
        found = opening.find_configuration(written, progress)
        return gpu or resolve_gpu(AUTO), found.resolved
    missing = list[MmcalibError]()
    if gpu is None and log.platform in from_log.MAKERS:
        raise UsageError(
            f"the log is from {from_log.MAKERS[log.platform]} (platform {log.platform}); mmcalib "
            "rehearses memory of NVIDIA GPUs only, so the log's own figures are all there is",
            hint="mmcalib run or validate without --gpu: limits and tokens, or --gpu to move there",
        )
    try:
        gpu = gpu or from_log.gpu_of_log(log)
    except UsageError as error:
        missing.append(error)
    try:
        found = opening.find_configuration(written, progress, (log.model, log.architecture))
    except (ModelError, UsageError) as error:
        if gpu is not None:
            raise
        missing.append(error)
    if missing:
        hints = "; ".join(error.hint for error in missing)
        raise UsageError("; ".join(error.message for error in missing), hint=hints)
    assert gpu is not None
    return from_log.with_memory_of_log(gpu, log), found.resolved


def measure_log(
    log: StartupLog, rehearsals: Rehearsals, args: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[RehearsedMemory | None, list[str]]:
    """Rehearse the log's configuration, and anchor all rehearsals to what the log states; return
    None if it fails, and what differs. Raises ModelError if the log is of another model.
    """
    try:
        first = rehearsals.rehearse(args)
    except EngineError as error:
        return None, [f"the log's configuration cannot be rehearsed: {error.message}"]
    twins = quantized_twins(config)
    notes = from_log.compare_log(log, first.weights_bytes, first.kv_cache_bytes, twins)
    if log.kv_cache_bytes is not None and not args.get("kv_cache_memory_bytes"):
        beside = first.kv_cache_bytes - log.kv_cache_bytes
        # The log's GPU has the same size, or its server failed as the rehearsal does.
        is_same = beside > 0 and (log.total_bytes is not None or not first.starts)
        is_near = abs(beside) <= _MOST_ANCHOR * first.total_bytes
        if (is_same or is_near) and abs(beside) >= _LEAST_ANCHOR:
            rehearsals.beside_bytes = beside
    return first, notes


def _search(
    trials: Trials, rehearsals: Rehearsals, resolved: ResolvedModel, progress: Progress
) -> r.SearchResult:
    """Search for remedies unless the goal is reached."""
    base = trials.outcome(())
    if base.reached:
        return r.SearchResult((), base, proven=True)
    if base.memory is not None and base.memory.budget is None:
        raise opening.text_only_error(resolved)
    loading = opening.loading_args(trials.engine_args)
    opened = opening.open_model(rehearsals, resolved, progress, loading)
    return search(replace(trials, knobs=opened.knobs), base, progress)


def _tried(remedies: r.Remedies, result: r.Outcome, trials: Trials) -> TriedFixes:
    """Report one rehearsed combination."""
    memory, changes = result.memory, trials.changes(remedies)
    return TriedFixes.from_value(
        remedies[-1],
        flags=r.format_flags(changes),
        changes=changes,
        reaches=result.reached,
        lacking_bytes=result.lacking_bytes,
        kv_cache_bytes=memory.kv_cache_bytes if memory else None,
        kv_cache_tokens=memory.kv_cache_tokens if memory else None,
        problem=result.refusal,
    )


def combine(search: r.SearchResult, trials: Trials) -> Combination | None:
    """Report the remedies as a proposal; None without any."""
    changes, memory = trials.changes(search.best), search.outcome.memory
    # Of two numbers for one argument, the last is proposed.
    every = reduce(r.with_remedy, (*trials.required, *search.best), r.Remedies())
    if not every or memory is None:
        return None
    return Combination(
        fixes=[r.propose(changes, remedy) for remedy in every],
        flags=r.format_flags(changes),
        changes=changes,
        proven=search.proven,
        reserved=reserve_result(trials.judge(search.best, memory)),
        memory=memory_figures(memory, trials.prediction.gpu),
    )


def reserve_result(
    judged: Judged | None, best: Combination | None = None, oom: str | None = None
) -> CheckResult | None:
    """Return the reserve check for the report; `best` is the remedy if it fails."""
    if judged is None:
        return None
    result = CheckResult.from_value(judged.check)
    if judged.holds:
        return result
    detail = f"{oom}. {result.detail}" if oom else result.detail
    remedy = best.flags if best else result.remedy
    return result.model_copy(update={"detail": detail, "remedy": remedy})


def _least(best: r.Outcome, resolved: ResolvedModel, config: Mapping[str, Any]) -> str:
    """Name the least hardware, or the checkpoints, with which the goal may be reached."""
    if best.memory is None:
        return ""
    quantized = [name for name in quantized_twins(config) if name != resolved.id]
    others = "".join(f", or --model {name}" for name in quantized)
    return f"a GPU with about {gib(best.memory.card_bytes(best.lacking_bytes))}{others}"


@dataclass(frozen=True, slots=True)
class Judged:
    """One configuration's reserve check; `lacking_bytes` is the shortfall after the log's OOM."""

    check: Check
    shortfall: Shortfall | None
    configuration: JudgedConfig
    lacking_bytes: int = 0

    @property
    def holds(self) -> bool:
        return self.check.status != "fail"


@dataclass(frozen=True, slots=True)
class Trials:
    """A configuration, its goal and what must stay. Every combination includes the `required`
    remedies; `oom` is the shortfall of the log's server when it ran out of memory.
    """

    prediction: MemoryPrediction
    engine_args: Mapping[str, Any]
    goal: r.Goal
    kept: r.Kept = field(default_factory=dict)
    required: r.Remedies = ()
    oom: ObservedOom | None = None
    knobs: tuple[Knob, ...] = ()

    def changes(self, remedies: r.Remedies) -> dict[str, Any]:
        """Return the engine arguments that the remedies change, each with its whole new value."""
        values = r.changed_args(self.engine_args, (*self.required, *remedies))
        names = [name for remedy in (*remedies, *self.required) for name in remedy.changes]
        return {name: values[name] for name in dict.fromkeys(names)}

    def args(self, remedies: r.Remedies) -> dict[str, Any]:
        """Return all engine arguments with the remedies applied."""
        return {**self.engine_args, **self.changes(remedies)}

    def rehearse(self, remedies: r.Remedies) -> RehearsedMemory:
        """Raises EngineError if vLLM rejects the remedies or the rehearsal fails."""
        return self.prediction.rehearse(self.args(remedies))

    def outcome(self, remedies: r.Remedies) -> r.Outcome:
        """Return an outcome that is reached only if the startup reserve holds too. A remedy that
        makes vLLM reject other items than its own counts as refused.
        """
        try:
            memory = self.rehearse(remedies)
        except EngineError as error:
            return r.Outcome(False, 0, error.message)
        lacking = self.goal.lacking_bytes(memory)
        if rejected := self._find_rejected(remedies):
            return r.Outcome(False, lacking, f"rejects {', '.join(rejected)} items", memory=memory)
        judged = None if lacking else self.judge(remedies, memory)
        if judged is None or judged.holds:
            return r.Outcome(not lacking, lacking, memory=memory)
        lacking = max(1, judged.shortfall.nbytes if judged.shortfall else 0, judged.lacking_bytes)
        return r.Outcome(False, lacking, starts=True, memory=memory)

    def look(self, remedies: r.Remedies, now: r.Outcome) -> r.Situation | None:
        """Describe these remedies for the levers; None if they were not rehearsed."""
        if now.memory is None or now.memory.budget is None:
            return None
        args, lacking = self.args(remedies), 0 if now.starts else now.lacking_bytes
        seen = now.memory, now.memory.budget
        return r.Situation(args, *seen, self.goal, lacking, self.knobs, self.kept)

    def _find_rejected(self, remedies: r.Remedies) -> list[Modality]:
        """Return served modalities whose items a cap of another modality's makes vLLM reject."""
        capped = {knob.name: knob.modality for knob in self.knobs}
        caps = {capped[one.knob] for one in remedies if one.knob in capped}
        if not caps:
            return []
        without = self.largest_items(tuple(one for one in remedies if one.knob not in capped))
        served = self.largest_items(remedies)
        return [m for m, most in without.items() if m not in caps and 0 < served.get(m, 0) < most]

    def largest_items(self, remedies: r.Remedies = ()) -> Mapping[Modality, int]:
        """Tokens of vLLM's largest item per served modality, if known."""
        answer = self.prediction.find_result(self.args(remedies))
        budget = answer.budget if isinstance(answer, RehearsedMemory) else None
        return budget.max_tokens_per_item if budget else {}

    def judge(self, remedies: r.Remedies, memory: RehearsedMemory) -> Judged | None:
        """Check the reserve of this rehearsal with vLLM's dummies; None without media."""
        if memory.budget is None:
            return None
        config, predicted, short = self.predict(remedies, memory, memory.budget)
        check, missing = reserve.reserved_bytes_check(short, memory, config), 0
        if check is None:
            facts = CheckFacts(RemedyStyle.LINES, config, tries=Alternatives())
            args = self.args(remedies)
            model, flags = args.pop("model"), shlex.split(r.format_flags(args))
            written = WrittenConfiguration(model=model, flags=tuple(flags))
            why = explain_unrehearsed(predicted, written)
            in_tokens = reserve.check_reserved_tokens(facts)
            (check,) = reserve.qualify_tokens_only(in_tokens, config, why)
        if (oom := self.oom) is not None:
            # The log's shortfall decides if the reserve check alone passes.
            missing = oom.missing_bytes(memory, short)
            if missing > 0:
                need = f"{gib(missing)} more must stay free"
                detail = f"{need}; {check.detail}" if check.status == "fail" else need
                check = replace(check, status="fail", detail=detail)
            else:
                more, was = gib(oom.lacking_bytes - missing), gib(oom.lacking_bytes)
                detail = f"{check.detail}; {more} more stay free than on the log's server"
                check = replace(check, detail=f"{detail}, which was short of {was}")
        if check.status == "fail":
            words = "another --gpu, a lower --goal, or `mmcalib run --gpu`, which caps items by "
            check = replace(check, remedy=f"{words}your own")
        return Judged(check, short, config, max(0, missing))

    def predict(
        self, remedies: r.Remedies, memory: RehearsedMemory, budget: Budget
    ) -> tuple[JudgedConfig, Predicted, Shortfall | None]:
        """Return the configuration, its worst steps, and the shortfall of its reserve, if known."""
        args, prediction = self.args(remedies), self.prediction
        # vLLM's budget omits modalities that it does not serve; a missing limit admits its maximum.
        limited = {m: 0 for m in MODALITIES if m in (args.get(LIMIT) or {})}
        every = (limited | budget.max_items_per_prompt).items()
        counts = {m: Count(count, "", "computed") for m, count in every}
        adequacy = rehearsed_adequacy(memory, budget)
        config = JudgedConfig(args, counts, budget, plain=budget, adequacy=adequacy)
        steps = worst_steps.rehearse_worst_steps(config, prediction.rehearse_all)
        predicted = Predicted(prediction.gpu, None, memory, steps=steps, failure=prediction.failure)
        return config, predicted, worst_steps.find_shortfall(config, memory, steps)

    def reserve(self, remedies: r.Remedies) -> Iterator[r.Remedy]:
        """Yield engine values that make the reserve hold, or leave the log's shortfall free."""
        before, oom = self.rehearse(remedies), self.oom
        judged = self.judge(remedies, before)
        if judged is None:
            return
        if oom and not before.division.is_before_kv_cache(oom.phase) and judged.lacking_bytes:
            less, given = judged.lacking_bytes, self.args(remedies).get(r.CACHE_BYTES)
            change: tuple[str, float] = (r.CACHE_BYTES, (given or 0) - less)
            if not given:
                share = floor_utilization(before.requested_bytes - less, before.total_bytes)
                less = self.rehearse(()).requested_bytes - round(share * before.total_bytes)
                change = r.UTILIZATION, share
            if change[1] > 0:
                price = f"{gib(less)} less, which stays free for such a step"
                yield r.set_value(*change, price, "KV cache")
        if (short := judged.shortfall) and not short.passes:
            ask = self.prediction.rehearse_all
            for remedy, _ in worst_steps.find_remedies(short, judged.configuration, ask):
                yield remedy


# A rehearsal takes about two seconds, and users wait for about a minute. Worst steps add to that.
MOST_REHEARSALS: Final = 25


def search(trials: Trials, base: r.Outcome, progress: Progress) -> r.SearchResult:
    """Return the least remedies that reach the goal safely."""
    with progress.step("rehearsing fixes", MOST_REHEARSALS) as task:

        def evaluate(chosen: r.Remedies) -> r.Outcome:
            task.advance()
            return trials.outcome(chosen)

        def reserving(chosen: r.Remedies) -> list[r.Remedy]:
            found = (one for one in trials.reserve(chosen) if r.allows(trials.kept, one))
            return sorted(found, key=lambda one: COSTS.index(one.cost))

        return r.Search(evaluate, trials.look, reserving, MOST_REHEARSALS).run(base)


def observe_oom(trials: Trials, log: StartupLog) -> ObservedOom | None:
    """Return the log's worst OOM, if any. Before the KV cache it is not vLLM's own if another
    process held as much as was tried. Raises EngineError if it cannot be rehearsed.
    """
    answer = trials.rehearse(())
    before = answer.division.is_before_kv_cache
    ooms = [(one.oom, one.phase) for one in log.failures if one.oom]
    errors = [
        (o, p) for o, p in ooms if not before(p) or (o.others_bytes or 0) < (o.tried_bytes or 1)
    ]
    if not errors:
        return None
    short, every = None, list[Demand]()
    if answer.budget is not None:
        config, predicted, short = trials.predict((), answer, answer.budget)
        every = list(worst_steps.list_demands(config, answer, predicted.steps))
    cache = answer.kv_cache_bytes if log.kv_cache_bytes is None else log.kv_cache_bytes
    observed = (compare_oom(cause, phase, answer, short, every, cache) for cause, phase in errors)
    return max(observed, key=lambda one: one.lacking_bytes)


def describe_oom(oom: ObservedOom, division: Division) -> str:
    """Say which step took the memory, and how much was outside PyTorch."""
    words = f"the log's server ran out of memory{f' ({oom.phase})' if oom.phase else ''}"
    if division.is_before_kv_cache(oom.phase) and oom.spare_bytes > oom.lacking_bytes:
        words += f", though its rehearsal leaves {gib(oom.spare_bytes)} free then"
    if oom.step_bytes is not None:
        words += f": its step took {gib(oom.step_bytes)} above the model and the KV cache"
    if oom.step_modality is not None:
        words += f", as much as {oom.step_tokens:,} tokens of {oom.step_modality} ({oom.step_items}"
        words += f" of the largest); one step encodes at most {oom.step_limit_tokens:,}"
    if oom.outside_torch_bytes is not None:
        words += f"; {gib(oom.outside_torch_bytes)} were outside PyTorch"
    return words


def without_trap_hints(trials: Trials) -> Trials:
    """Drop size hints if they shrink vLLM's profile but not the items that it admits."""
    for remedy in r.drop_hints(trials.engine_args):
        honest = replace(trials, required=(*trials.required, remedy))
        if r.allows(trials.kept, remedy) and not honest.outcome(()).refusal:
            return honest if honest.largest_items() == trials.largest_items() else trials
    return trials
