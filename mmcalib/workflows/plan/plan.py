"""Make a plan: rehearse fixes on one GPU until they reach the goal and the reserve holds."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from mmcalib.checks.check import Check
from mmcalib.checks.facts import JudgedConfig
from mmcalib.checks.limits import LIMIT
from mmcalib.configs.read import find_configuration, read_configuration
from mmcalib.derive.demand import Demand, ObservedOom, Shortfall, compare_oom
from mmcalib.derive.fixes import (
    NO_CONSTRAINTS,
    UTILIZATION,
    Constraints,
    Fix,
    Goal,
    Outcome,
    Search,
    SearchResult,
    Situation,
    changed_args,
    drop_hints,
    format_flags,
    parse_constraints,
    parse_goal,
    propose,
    set_argument,
)
from mmcalib.derive.limits import Count
from mmcalib.derive.log_fixes import stated_fixes
from mmcalib.derive.logs import StartupLog
from mmcalib.derive.policy import COSTS
from mmcalib.domain.knobs import Knob
from mmcalib.domain.memory import Budget, RehearsedMemory, floor_utilization
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.vllm_config import add_config_hints, loading_args, open_model, text_only_error
from mmcalib.errors import EngineError
from mmcalib.memory.checks import predicted_shortfall
from mmcalib.memory.figures import memory_figures, rehearsed_adequacy
from mmcalib.memory.rehearse import MemoryPrediction, Predicted, Rehearsals
from mmcalib.memory.worst_steps import find_remedies, list_demands, rehearse_worst_steps
from mmcalib.models.catalogue import quantized_twins
from mmcalib.models.cut import read_config
from mmcalib.models.gpus import AUTO, Gpu, resolve_gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.progress import Progress, Silent
from mmcalib.releases.constants import GPU_MEMORY_UTILIZATION
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Combination, Plan, TriedFixes, Verdict
from mmcalib.text import gib
from mmcalib.version import __version__
from mmcalib.workflows.judging import judge_reserve
from mmcalib.workflows.plan import from_log

_NO_CORPUS: Final = (
    "an item takes no more memory than vLLM's largest item of the same token count; "
    "`mmcalib validate --data DIR` also checks padded and tiled items, and retained batches"
)
# Below this, an anchor is rounding; above this share of the GPU, the log profiled something else.
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
    log: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    server_log: from_log.ServerLog | None = None,
) -> Plan:
    """Find the least memory fixes that reach the goal on `gpu`, rehearsed; needs no GPU.

    The configuration comes from `flags` of `vllm serve`, then from the file `config`, then from a
    server's log (`server_log` if it is read already). `gpu` defaults to the log's GPU, then to this
    machine's. No fix changes an option in `keep` (`kv_cache_dtype`) or lowers it below a given
    value (`max_model_len=32k`). Raises `mmcalib.errors.MmcalibError`.
    """
    progress = progress or Silent()
    target, constraints = parse_goal(goal), parse_constraints(keep)
    if log is not None:
        server_log = server_log or from_log.read_server_log(Path(log))
    device = resolve_gpu(gpu) if isinstance(gpu, str) else gpu
    written = read_configuration(None if config is None else Path(config), flags, model)
    of_log = (server_log.log.model, server_log.log.architecture) if server_log else None
    find = partial(find_configuration, written, progress, of_log)
    # At once: vLLM takes long to import.
    if server_log is not None:
        device, found = from_log.find_subject(server_log.log, device, find)
    else:
        found = find()
    resolved = found.resolved
    device = device or resolve_gpu(AUTO)
    with (
        Rehearsals(device, on_note=progress.note, on_log=progress.log) as rehearsals,
        add_config_hints(written.source, flags, device),
        MemoryPrediction(device, rehearsals) as prediction,
    ):
        args = {**rehearsals.parse(written).engine_args, "model": resolved.path}
        logged_args, measured, notes = args, None, list[str]()
        ignored: tuple[str, ...] = ()
        required: tuple[Fix, ...] = ()
        if server_log is not None:
            logged_args, ignored = server_log.engine_args(rehearsals.list_options().engine)
            args = {**logged_args, **args}
            logged_args = {**logged_args, "model": resolved.path}
            required = stated_fixes(server_log.log, constraints)
            if from_log.is_comparable(server_log.log, device):
                with progress.step(f"rehearsing the log's configuration on {device.name}"):
                    measured, notes = _measure(server_log.log, rehearsals, logged_args, resolved)
        bench = FixTrials(prediction, args, target, constraints, required=required)
        with progress.step(f"rehearsing on {device.name}"):
            base = bench.rehearse(())
            if server_log is not None:
                notes = [
                    *from_log.notes_of(server_log.log, device, base.vllm, ignored, args),
                    *notes,
                ]
                known = replace(bench, engine_args=logged_args) if measured else bench
                bench = replace(bench, oom=observe_oom(known, server_log.log))
            outcome, judged = bench.safe_outcome(()), judge_fixes(bench)
            bench = bench if outcome.reached else without_trap_hints(bench)
        search = _search(bench, resolved, progress)
        verdict: Verdict = "reached" if search.reached else "out of reach"
        if outcome.reached and not required:
            verdict = "reached already"
        elif not search.reached and bench.outcome(search.best).reached:
            verdict = "under-reserved"
        best = _combine(search, bench) if verdict == "reached" else None
        return Plan(
            goal=f"{target}, and does not run out of memory" if bench.oom else str(target),
            kept=list(keep),
            verdict=verdict,
            reserved=reserve_result(judged, best, bench.oom),
            memory=memory_figures(base, device),
            lacking_bytes=outcome.lacking_bytes,
            tried=[_tried(fixes, result, bench) for fixes, result in search.tried],
            combination=best,
            least="" if best else _least(bench, search, resolved),
            log=server_log.answer(device, constraints) if server_log else None,
            oom=bench.oom,
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


def _measure(
    log: StartupLog, rehearsals: Rehearsals, args: Mapping[str, Any], resolved: ResolvedModel
) -> tuple[RehearsedMemory | None, list[str]]:
    """Rehearse the log's configuration, and anchor all rehearsals to what the log states; return
    None if it fails, and what differs. Raises ModelError if the log is of another model.
    """
    try:
        first = rehearsals.rehearse(args)
    except EngineError as error:
        return None, [f"the log's configuration cannot be rehearsed: {error.message}"]
    twins = quantized_twins(read_config(Path(resolved.path)))
    notes = from_log.compare(log, first.weights_bytes, first.kv_cache_bytes, twins)
    if log.kv_cache_bytes is not None and not args.get("kv_cache_memory_bytes"):
        beside = first.kv_cache_bytes - log.kv_cache_bytes
        if abs(beside) > _MOST_ANCHOR * first.total_bytes:
            notes.append("that is too much for one cause: proposals are rehearsed, not anchored")
        elif abs(beside) >= _LEAST_ANCHOR:
            rehearsals.beside_bytes = beside
    return first, notes


def _search(bench: FixTrials, resolved: ResolvedModel, progress: Progress) -> SearchResult:
    """Search for fixes unless the goal is reached."""
    base, memory = bench.safe_outcome(()), bench.find_rehearsal()
    if base.reached:
        return SearchResult((), reached=True, proven=True)
    if memory is not None and memory.budget is None:
        raise text_only_error(resolved)
    # A separate child process finds the processor's options.
    with EngineHost(on_note=progress.note, on_log=progress.log) as host:
        opened = open_model(host, resolved, progress, engine_args=loading_args(bench.engine_args))
    heads = _attention_heads(read_config(Path(resolved.path)))
    bench = replace(bench, knobs=opened.knobs, chunks_mm_input=opened.chunks_mm_input)
    return search_fixes(replace(bench, attention_heads=heads), base, progress)


def _tried(fixes: tuple[Fix, ...], result: Outcome, bench: FixTrials) -> TriedFixes:
    """Report one rehearsed combination."""
    rehearsed, changes = bench.find_rehearsal(fixes), bench.changes(fixes)
    return TriedFixes.from_value(
        fixes[-1],
        flags=format_flags(changes),
        changes=changes,
        reaches=result.reached,
        lacking_bytes=result.lacking_bytes,
        kv_cache_bytes=rehearsed.kv_cache_bytes if rehearsed else None,
        kv_cache_tokens=rehearsed.kv_cache_tokens if rehearsed else None,
        problem=result.refusal,
    )


def _combine(search: SearchResult, bench: FixTrials) -> Combination | None:
    """Report the fixes as a proposal; None without any."""
    every = (*bench.required, *search.best)
    answer = bench.find_rehearsal(search.best) if every else None
    if answer is None:
        return None
    changes = bench.changes(search.best)
    return Combination(
        fixes=[propose(changes, fix) for fix in every],
        flags=format_flags(changes),
        changes=changes,
        proven=search.proven,
        reserved=reserve_result(judge_fixes(bench, search.best)),
        memory=memory_figures(answer, bench.prediction.gpu),
    )


def reserve_result(
    judged: JudgedFixes | None, mended: Combination | None = None, oom: ObservedOom | None = None
) -> CheckResult | None:
    """Return the reserve check for the report; `mended` is the remedy if it fails."""
    if judged is None:
        return None
    result = CheckResult.from_value(judged.check)
    if judged.holds:
        return result
    detail = f"{describe_oom(oom)}. {result.detail}" if oom else result.detail
    remedy = mended.flags if mended else result.remedy
    return result.model_copy(update={"detail": detail, "remedy": remedy})


def _least(bench: FixTrials, search: SearchResult, resolved: ResolvedModel) -> str:
    """Name the least hardware, or the checkpoints, with which the goal may be reached."""
    memory = bench.find_rehearsal(search.best)
    if memory is None:
        return ""
    lacking = bench.safe_outcome(search.best).lacking_bytes
    whole = gib(round((memory.requested_bytes + lacking) / GPU_MEMORY_UTILIZATION))
    names = quantized_twins(read_config(Path(resolved.path)))
    quantized = [name for name in names if name != resolved.id]
    return f"a GPU with about {whole}" + "".join(f", or --model {name}" for name in quantized)


def _attention_heads(config: Mapping[str, Any]) -> int | None:
    """Return the language model's head count; families nest its configuration differently."""
    whole = config.get("thinker_config", config)
    for part in ("text_config", "llm_config", "language_config"):
        if isinstance(whole, Mapping) and isinstance(whole.get(part), Mapping):
            whole = whole[part]
    heads = whole.get("num_attention_heads") if isinstance(whole, Mapping) else None
    return heads if isinstance(heads, int) else None


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
    knobs: tuple[Knob, ...] = ()
    chunks_mm_input: bool = True
    attention_heads: int | None = None

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

    def safe_outcome(self, fixes: tuple[Fix, ...]) -> Outcome:
        """Return an outcome that is reached only if the startup reserve holds too. A fix that makes
        vLLM reject other items than its own counts as refused.
        """
        outcome = self.outcome(fixes)
        if rejected := self.find_rejected(fixes):
            return replace(outcome, reached=False, refusal=f"rejects {', '.join(rejected)} items")
        judged = judge_fixes(self, fixes) if outcome.reached else None
        if judged is None or judged.holds:
            return outcome
        short = judged.shortfall.nbytes if judged.shortfall else 0
        return Outcome(False, max(1, short, judged.lacking_bytes), starts=True)

    def look(self, fixes: tuple[Fix, ...], now: Outcome) -> Situation | None:
        """Describe these fixes for the levers; None if they were not rehearsed."""
        memory = self.find_rehearsal(fixes)
        if memory is None or memory.budget is None:
            return None
        args, lacking = self.args(fixes), 0 if now.starts else now.lacking_bytes
        return Situation(
            *(args, memory, memory.budget, self.goal, lacking, self.knobs),
            *(self.chunks_mm_input, self.attention_heads, self.constraints),
        )

    def find_rejected(self, fixes: tuple[Fix, ...]) -> list[Modality]:
        """Return served modalities whose items a cap of another modality's makes vLLM reject."""
        capped = {knob.name: knob.modality for knob in self.knobs}
        caps = {capped[fix.knob] for fix in fixes if fix.knob in capped}
        if not caps:
            return []
        without = self.largest_items(tuple(fix for fix in fixes if fix.knob not in capped))
        served = self.largest_items(fixes)
        return [m for m, most in without.items() if m not in caps and 0 < served.get(m, 0) < most]

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


def search_fixes(bench: FixTrials, base: Outcome, progress: Progress) -> SearchResult:
    """Return the least fixes that reach the goal safely."""
    with progress.step("rehearsing fixes", MOST_REHEARSALS) as task:

        def evaluate(chosen: tuple[Fix, ...]) -> Outcome:
            task.advance()
            return bench.safe_outcome(chosen)

        def mends(chosen: tuple[Fix, ...]) -> Iterator[Fix]:
            judged = judge_fixes(bench, chosen)
            found = filter(bench.constraints.allows, _mends(bench, judged) if judged else ())
            yield from sorted(found, key=lambda fix: COSTS.index(fix.cost))

        return Search(evaluate, bench.look, mends, MOST_REHEARSALS).run(base)


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


def _mends(bench: FixTrials, judged: JudgedFixes) -> Iterator[Fix]:
    """Yield engine values that make the reserve hold, or leave the log's shortfall free."""
    before, now = judged.rehearsed, judged.configuration.budget
    if bench.oom and not bench.oom.before_kv_cache and judged.lacking_bytes:
        room = before.requested_bytes - judged.lacking_bytes
        share = floor_utilization(room, before.total_bytes)
        less = before.requested_bytes - round(share * before.total_bytes)
        if share > 0:
            price = f"{gib(less)} less, which stays free for such a step"
            yield set_argument(UTILIZATION, share, "KV cache", price)
    short = judged.shortfall
    if short is None or short.passes:
        return
    for remedy in find_remedies(short, judged.configuration, bench.prediction.rehearse_all):
        less = before.kv_cache_bytes - remedy.rehearsed.kv_cache_bytes
        seqs, batch = remedy.engine.max_num_seqs, remedy.engine.max_num_batched_tokens
        prices = [] if seqs is None else [f"vLLM reserves for up to {seqs} requests at once"]
        prices += [] if batch is None else [f"vLLM reads prompts {batch:,} tokens at a time"]
        prices += [f"{gib(less)} less for the KV cache"] if less > 0 else []
        yield Fix("reserve", remedy.engine.values, remedy.cost(now, less), "; ".join(prices))


def without_trap_hints(bench: FixTrials) -> FixTrials:
    """Drop size hints if they shrink vLLM's profile but not the items that it admits."""
    for fix in drop_hints(bench.engine_args):
        honest = replace(bench, required=(*bench.required, fix))
        if bench.constraints.allows(fix) and not honest.outcome(()).refusal:
            return honest if honest.largest_items() == bench.largest_items() else bench
    return bench
