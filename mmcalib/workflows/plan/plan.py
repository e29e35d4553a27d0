"""Make a plan and its document."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from mmcalib.configs.read import find_configuration, read_configuration
from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.fix_search import SearchResult
from mmcalib.derive.fixes import (
    SIZE_HINT,
    Facts,
    Fix,
    format_flags,
    highest_levels,
    parse_constraints,
    parse_goal,
)
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.vllm_config import (
    add_config_hints,
    loading_args,
    open_model,
    text_only_error,
)
from mmcalib.errors import EngineError, MmcalibError
from mmcalib.memory.figures import memory_figures
from mmcalib.memory.predict import most_sequences
from mmcalib.memory.rehearse import AUTO, MemoryPrediction, Rehearsals, resolve_gpu
from mmcalib.models.cut import read_config
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.progress import Progress, Silent
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Combination, Plan, Price, TriedFix
from mmcalib.version import __version__
from mmcalib.workflows.plan import from_log
from mmcalib.workflows.plan.trials import (
    FixTrials,
    JudgedFixes,
    SafeChoice,
    choose_safe,
    describe_oom,
    find_rejected,
    judge_fixes,
    observe_oom,
    safe_outcome,
    search_fixes,
    without_trap_hints,
)


def try_fix(fix: Fix, bench: FixTrials) -> TriedFix:
    """Report what one fix does when it is applied alone."""
    rehearsed = bench.find_rehearsal((fix,)) if not fix.untried else None
    changes = dict(fix.changes) if fix.untried else bench.changes((fix,))
    problem = fix.untried
    if not fix.untried and rehearsed is None:
        answer = bench.prediction.find_result(bench.args((fix,)))
        refusal = answer.message if isinstance(answer, MmcalibError) else ""
        problem = refusal or "the limit of rehearsals was reached"
    reaches = bench.goal.is_reached(rehearsed) if rehearsed else None
    lacking = bench.outcome((fix,)).lacking_bytes if rehearsed else None
    judged = judge_fixes(bench, (fix,)) if reaches or fix.knob == SIZE_HINT else None
    if reaches and judged is not None and judged.lacking_bytes:
        reaches, lacking = False, judged.lacking_bytes
    return TriedFix.from_value(
        fix,
        flags=format_flags(changes) or fix.name,
        changes=changes,
        reaches=reaches,
        lacking_bytes=lacking,
        kv_cache_bytes=rehearsed.kv_cache_bytes if rehearsed else None,
        kv_cache_tokens=rehearsed.kv_cache_tokens if rehearsed else None,
        max_concurrency=rehearsed.max_concurrency if rehearsed else None,
        problem=problem,
        warning=_warning(fix, bench, rehearsed, judged) if rehearsed else "",
    )


def combinations(
    search: SearchResult, bench: FixTrials
) -> tuple[Combination | None, list[Combination]]:
    """Return the best combination, None if no fixes could be combined, and others that reach the
    goal.
    """
    best = _combine(search.best, bench, search.reached, search.proven)
    others = (_combine(fixes, bench, True, fixes not in search.repaired) for fixes in search.others)
    return best, list(filter(None, others))


def _combine(
    fixes: tuple[Fix, ...], bench: FixTrials, reaches: bool, proven: bool
) -> Combination | None:
    every = (*bench.required, *fixes)
    answer = bench.find_rehearsal(fixes) if every else None
    if answer is None:
        return None
    changes = bench.changes(fixes)
    return Combination(
        fixes=[
            Price.from_value(f, flags=format_flags({name: changes[name] for name in f.changes}))
            for f in highest_levels(every)
        ],
        flags=format_flags(changes),
        changes=changes,
        reaches=reaches,
        proven=proven,
        reserved=reserve_result(judge_fixes(bench, fixes)),
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


def _warning(
    fix: Fix, bench: FixTrials, rehearsed: RehearsedMemory, judged: JudgedFixes | None
) -> str:
    """Say why the reserve fails under a fix, or which items a size hint makes vLLM reject."""
    hint = fix.knob == SIZE_HINT
    for modality, (before, after) in (find_rejected(fix, bench) if hint else {}).items():
        return f"vLLM then rejects {modality} items above {after:,} tokens (now {before:,})"
    if judged is None or judged.holds:
        return ""
    if not hint or rehearsed.budget is None:
        return judged.check.detail
    (modality,) = fix.changes["limit_mm_per_prompt"]
    most = rehearsed.budget.max_tokens_per_item.get(modality, 0)
    return f"a trap: vLLM still admits {modality} items of {most:,} tokens; {judged.check.detail}"


_NO_CORPUS: Final = (
    "an item takes no more memory than vLLM's largest item of the same token count; "
    "`mmcalib validate --data DIR` also checks padded and tiled items, and retained batches"
)


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
) -> Plan:
    """Find the memory fixes that reach the goal on `gpu`, and rehearse each; needs no GPU.

    The configuration comes from `flags` of `vllm serve`, then from the file `config`, then from a
    server's log. `gpu` defaults to the log's GPU, then to this machine's. No fix changes an option
    in `keep` (`kv_cache_dtype`) or lowers it below a given value (`max_model_len=32k`). Raises
    `mmcalib.errors.MmcalibError`.
    """
    progress = progress or Silent()
    target, constraints = parse_goal(goal), parse_constraints(keep)
    server_log = from_log.read_server_log(Path(log)) if log is not None else None
    if gpu is None and server_log is not None:
        gpu = from_log.gpu_of_log(server_log.log)
    device = gpu if isinstance(gpu, Gpu) else resolve_gpu(gpu or AUTO)
    if server_log is not None:
        device = from_log.with_free_of_log(device, server_log.log)
    written = read_configuration(None if config is None else Path(config), flags, model)
    path = written.source
    logged = (server_log.log.model, server_log.log.architecture) if server_log else None
    resolved = find_configuration(written, progress, logged).resolved
    with (
        Rehearsals(device, on_note=progress.note, on_log=progress.log) as rehearsals,
        MemoryPrediction(device, rehearsals) as prediction,
        add_config_hints(path, flags, device),
    ):
        args = rehearsals.parse(written).engine_args
        if server_log is not None:
            args = {**server_log.engine_args, **args}
        stated = from_log.stated_fixes(server_log, constraints) if server_log is not None else ()
        all_args = {**args, "model": resolved.path}
        bench = FixTrials(prediction, all_args, target, constraints, required=stated)
        with progress.step(f"rehearsing on {device.name}"):
            base = bench.rehearse(())
            doubts: list[str] = []
            if server_log is not None and any(one.oom for one in server_log.log.failures):
                bench, doubts = _with_oom(bench, server_log, resolved)
            outcome = bench.outcome(())
            judged = judge_fixes(bench) if outcome.reached or bench.oom else None
            holds = outcome.reached and judged is not None and judged.holds
            trials = bench if holds else without_trap_hints(bench)
        fixes, chosen = _search(trials, base, resolved, progress)
        with progress.step(f"rehearsing worst steps on {device.name}"):
            tries = [try_fix(fix, bench) for fix in trials.required if fixes]
            tries += [try_fix(fix, trials) for fix in fixes if fix.alone or fix.untried]
            cheapest, alternatives = combinations(chosen.best, trials)
            mended = cheapest if chosen.verdict == "reached" else None
        return Plan(
            goal=f"{target}, and does not run out of memory" if bench.oom else str(target),
            kept=list(keep),
            verdict=chosen.verdict,
            reserved=reserve_result(judged, mended, bench.oom),
            memory=memory_figures(base, device),
            lacking_bytes=outcome.lacking_bytes,
            fixes=tries,
            combination=cheapest,
            others=alternatives,
            log=from_log.describe_log(server_log, base, device, bench.oom, doubts)
            if server_log
            else None,
            model=resolved.id,
            source=resolved.source,
            config="" if path is None else str(path),
            gpu=device.name,
            capability=device.compute_capability,
            vllm=base.vllm,
            mmcalib=__version__,
            rehearsals=prediction.count,
            assumptions=[*base.assumptions, _NO_CORPUS, *resolved.notes],
        )


def _search(
    bench: FixTrials, base: RehearsedMemory, resolved: ResolvedModel, progress: Progress
) -> tuple[list[Fix], SafeChoice]:
    """Return all possible fixes and the chosen ones; no fixes if the goal is reached already."""
    fixes: list[Fix] = []
    chosen = SafeChoice("reached already", SearchResult((), reached=True, proven=True))
    if bench.outcome(()).reached:
        chosen = choose_safe(bench, chosen.best)
        if chosen.verdict != "under-reserved":
            return fixes, chosen
    # A separate child process finds the processor's options.
    with EngineHost(on_note=progress.note, on_log=progress.log) as host:
        opened = open_model(host, resolved, progress, engine_args=loading_args(bench.engine_args))
    facts = _facts(base, opened, resolved)
    if not bench.outcome(()).reached:
        fixes, cheap = search_fixes(bench, facts, progress)
        chosen = choose_safe(bench, cheap)
    if chosen.verdict == "under-reserved":
        # The cheapest fixes reach the goal but reserve too little: search for fixes that do both.
        fixes, safe = search_fixes(bench, facts, progress, partial(safe_outcome, bench))
        if safe.reached:
            chosen = choose_safe(bench, safe)
    return fixes, chosen


def _with_oom(
    bench: FixTrials, server_log: from_log.ServerLog, resolved: ResolvedModel
) -> tuple[FixTrials, list[str]]:
    """Return the bench with the OOM of the log's server, and doubts about it."""
    doubts = []
    own = replace(bench, engine_args={**server_log.engine_args, "model": resolved.path})
    try:
        base = own.rehearse(())
    except EngineError as error:
        # Compare its shortfall with the present configuration instead.
        own, base = bench, bench.rehearse(())
        doubts.append(f"the log's own configuration cannot be rehearsed: {error.message}")
    oom = observe_oom(own, server_log.log)
    if base.budget is None:
        raise text_only_error(resolved)
    return replace(bench, oom=oom), doubts


def _facts(base: RehearsedMemory, opened: ModelInfo, resolved: ResolvedModel) -> Facts:
    if base.budget is None:
        raise text_only_error(resolved)
    config = read_config(Path(resolved.path))
    return Facts(
        memory=base,
        budget=base.budget,
        knobs=opened.knobs,
        chunks_mm_input=opened.chunks_mm_input,
        quantized="quantization_config" in config,
        attention_heads=_attention_heads(config),
        most_sequences=most_sequences(base),
    )


def _attention_heads(config: Mapping[str, Any]) -> int | None:
    """Return the language model's head count; families nest its configuration differently."""
    whole = config.get("thinker_config", config)
    for part in ("text_config", "llm_config", "language_config"):
        if isinstance(whole, Mapping) and isinstance(whole.get(part), Mapping):
            whole = whole[part]
    heads = whole.get("num_attention_heads") if isinstance(whole, Mapping) else None
    return heads if isinstance(heads, int) else None
