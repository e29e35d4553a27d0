"""The plan and its document."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.fix_search import Found
from mmcalib.derive.fixes import SIZE_HINT, Facts, Fix, effective, parse_goal, parse_kept, spelled
from mmcalib.domain.memory import Rehearsed
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.config_forms import read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.engine.vllm_config import open_model, saying_what_to_change, takes_no_media
from mmcalib.errors import EngineError, MmcalibError, ModelError, UsageError
from mmcalib.memory.figures import memory
from mmcalib.memory.rehearse import AUTO, MemoryPrediction, Rehearsals, gpu_of, parse_arguments
from mmcalib.models.cut import read_config
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel, cache_dir, resolve
from mmcalib.progress import Progress, Silent
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Combination, Plan, Price, TriedFix
from mmcalib.version import __version__
from mmcalib.workflows.plan import from_log
from mmcalib.workflows.plan.trials import (
    Bench,
    JudgedFixes,
    Settled,
    choose_safe,
    judge_fixes,
    observe_oom,
    oom_words,
    refused_by,
    safe_outcome,
    search_fixes,
    without_trap_hints,
)


def try_fix(fix: Fix, bench: Bench) -> TriedFix:
    """One fix as it did on its own."""
    found = bench.known((fix,)) if not fix.untried else None
    changes = dict(fix.changes) if fix.untried else bench.changes((fix,))
    problem = fix.untried
    if not fix.untried and found is None:
        answer = bench.prediction.known(bench.args((fix,)))
        refused = answer.message if isinstance(answer, MmcalibError) else ""
        problem = refused or "not rehearsed: too many before it"
    reaches = bench.goal.reached(found) if found else None
    lacking = bench.outcome((fix,)).lacking_bytes if found else None
    at = judge_fixes(bench, (fix,)) if reaches or fix.knob == SIZE_HINT else None
    if reaches and at is not None and at.lacking_bytes:
        reaches, lacking = False, at.lacking_bytes
    return TriedFix(
        name=fix.name,
        flags=spelled(changes) or fix.name,
        changes=changes,
        cost=fix.cost,
        price=fix.price,
        reaches=reaches,
        lacking_bytes=lacking,
        kv_cache_bytes=found.kv_cache_bytes if found else None,
        kv_cache_tokens=found.kv_cache_tokens if found else None,
        max_concurrency=found.max_concurrency if found else None,
        problem=problem,
        warning=_warning(fix, bench, found, at) if found else "",
    )


def best(found: Found, bench: Bench) -> Combination | None:
    """The best of all, with what it costs; None where nothing could be combined."""
    return _combine(found.best, bench, found.reached, found.proven)


def others(found: Found, bench: Bench) -> list[Combination]:
    """What else reaches the goal."""
    every = (_combine(fixes, bench, True, fixes not in found.mended) for fixes in found.others)
    return list(filter(None, every))


def _combine(
    fixes: tuple[Fix, ...], bench: Bench, reaches: bool, proven: bool
) -> Combination | None:
    every = (*bench.required, *fixes)
    answer = bench.known(fixes) if every else None
    if answer is None:
        return None
    changes = bench.changes(fixes)
    return Combination(
        fixes=[
            Price(name=f.name, flags=spelled(bench.values(f, fixes)), cost=f.cost, price=f.price)
            for f in effective(every)
        ],
        flags=spelled(changes),
        changes=changes,
        reaches=reaches,
        proven=proven,
        reserved=reserved(judge_fixes(bench, fixes)),
        memory=memory(answer, bench.prediction.gpu),
    )


def reserved(
    found: JudgedFixes | None, mended: Combination | None = None, oom: ObservedOom | None = None
) -> CheckResult | None:
    """R4 as a report has it; where it fails, `mended` is what to do about it, and about `oom`."""
    if found is None:
        return None
    shown = CheckResult.showing(found.check)
    if found.holds:
        return shown
    detail = f"{oom_words(oom)}. {shown.detail}" if oom else shown.detail
    return shown.model_copy(
        update={"detail": detail, "remedy": mended.flags if mended else shown.remedy}
    )


def _warning(fix: Fix, bench: Bench, found: Rehearsed, at: JudgedFixes | None) -> str:
    """What is wrong with what reaches the goal, or with any size hint: a trap, or newly refused."""
    hint = fix.knob == SIZE_HINT
    for modality, (before, after) in (refused_by(fix, bench) if hint else {}).items():
        return f"every {modality} of more than {after:,} tokens is refused (now {before:,})"
    if at is None or at.holds:
        return ""
    if not hint or found.budget is None:
        return at.check.detail
    (modality,) = fix.changes["limit_mm_per_prompt"]
    most = found.budget.max_tokens_per_item.get(modality, 0)
    return f"a trap: {modality} items of {most:,} tokens are still admitted; {at.check.detail}"


_NO_CORPUS: Final = (
    "no item takes more than vLLM's own largest of as many tokens; of padded or tiled ones, and of "
    "cached outputs that keep their batch, `mmcalib validate --data DIR` knows"
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
    """Which memory fixes reach the goal on `gpu`, each rehearsed; no GPU is needed.

    The configuration is what `flags` of `vllm serve`, a file for `vllm serve --config` and a
    server's log say, the first of them that says something. Without `gpu` it is the log's or the
    present one. No fix changes what `keep` names (`kv_cache_dtype`), or makes it less than it says
    (`max_model_len=32k`). Raises `mmcalib.errors.MmcalibError`.
    """
    progress = progress or Silent()
    wanted, kept = parse_goal(goal), parse_kept(keep)
    read = from_log.read(Path(log)) if log is not None else None
    if gpu is None and read is not None:
        gpu = from_log.gpu_of_log(read.log)
    device = gpu if isinstance(gpu, Gpu) else gpu_of(gpu or AUTO)
    written = read_configuration(None if config is None else Path(config), flags, model)
    path = written.source
    with (
        Rehearsals(device, on_said=progress.note, on_log=progress.log) as rehearsals,
        MemoryPrediction(device, rehearsals) as prediction,
        saying_what_to_change(path, flags),
    ):
        args = parse_arguments(rehearsals, written)
        if read is not None:
            args = {**read.engine_args, **args}
        resolved = _find_model(args, read)
        bench = Bench(prediction, {**args, "model": resolved.path}, wanted, kept)
        with progress.step(f"rehearsing on {device.name}"):
            base = bench.rehearse(())
            doubts: list[str] = []
            if read is not None and any(failure.oom for failure in read.log.failures):
                bench, doubts = _with_oom(bench, read, resolved)
            outcome = bench.outcome(())
            at = judge_fixes(bench) if outcome.reached or bench.oom else None
            honest = bench if outcome.reached and at and at.holds else without_trap_hints(bench)
        fixes, found = _search(honest, base, resolved, progress)
        with progress.step(f"rehearsing worst steps on {device.name}"):
            tries = [try_fix(fix, bench) for fix in honest.required if fixes]
            tries += [try_fix(fix, honest) for fix in fixes if fix.alone or fix.untried]
            cheapest = best(found.best, honest)
            alternatives = others(found.best, honest)
        return Plan(
            goal=f"{wanted}, and does not run out of memory" if bench.oom else str(wanted),
            kept=list(keep),
            verdict=found.verdict,
            reserved=reserved(at, cheapest if found.verdict == "reached" else None, bench.oom),
            memory=memory(base, device),
            lacking_bytes=outcome.lacking_bytes,
            fixes=tries,
            combination=cheapest,
            others=alternatives,
            log=from_log.logged(read, base, device, bench.oom, doubts) if read else None,
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
    bench: Bench, base: Rehearsed, resolved: ResolvedModel, progress: Progress
) -> tuple[list[Fix], Settled]:
    """All fixes there are, and what came of them; none where the goal is reached without."""
    fixes: list[Fix] = []
    found = Settled("reached already", Found({}, (), reached=True, proven=True))
    if bench.outcome(()).reached:
        found = choose_safe(bench, found.best)
        if found.verdict != "under-reserved":
            return fixes, found
    # In a child of its own, which finds the processor's options.
    with EngineHost(on_said=progress.note, on_log=progress.log) as host:
        opened = open_model(host, resolved, progress)
    facts = _facts(base, opened, resolved)
    if not bench.outcome(()).reached:
        fixes, cheap = search_fixes(bench, facts, progress)
        found = choose_safe(bench, cheap)
    if found.verdict == "under-reserved":
        # The cheapest that reach the goal do not hold: look for those that do both.
        fixes, safe = search_fixes(bench, facts, progress, partial(safe_outcome, bench))
        if safe.reached:
            found = choose_safe(bench, safe)
    return fixes, found


def _with_oom(
    bench: Bench, read: from_log.ServerLog, resolved: ResolvedModel
) -> tuple[Bench, list[str]]:
    """The bench with what the log's server lacked, and why its configuration was not rehearsed."""
    doubts = []
    own = replace(bench, engine_args={**read.engine_args, "model": resolved.path})
    try:
        base = own.rehearse(())
    except EngineError as error:
        # It is then held against the configuration as it is.
        own, base = bench, bench.rehearse(())
        doubts.append(f"the log's own configuration cannot be rehearsed: {error.message}")
    oom = observe_oom(own, read.log)
    if base.budget is None:
        raise takes_no_media(resolved)
    return replace(bench, oom=oom), doubts


def _find_model(args: dict[str, Any], read: from_log.ServerLog | None) -> ResolvedModel:
    """The model that the arguments name, which they name no longer."""
    named = str(args.pop("model", None) or (read.log.model if read else "") or "")
    if not named:
        where = "; the log does not say which" if read else ""
        raise UsageError(f"no model is named{where}", hint="--model MODEL, or `model:` in --config")
    try:
        return resolve(named, cache_dir=cache_dir())
    except ModelError as error:
        if read is None or named != read.log.model:
            raise
        raise ModelError(
            f"the model of the log is not here: {error.message}",
            hint="--model MODEL: a checkpoint folder or hub id of the same model",
        ) from None


def _facts(base: Rehearsed, opened: ModelInfo, resolved: ResolvedModel) -> Facts:
    budget = base.budget
    if budget is None:
        raise takes_no_media(resolved)
    config = read_config(Path(resolved.path))
    return Facts(
        largest_items=budget.max_tokens_per_item,
        knobs=opened.knobs,
        chunks_mm_input=opened.chunks_mm_input,
        quantized="quantization_config" in config,
        tensor_parallel_size=base.tensor_parallel_size,
        attention_heads=_attention_heads(config),
        weights_bytes=base.weights_bytes,
        total_bytes=base.total_bytes,
        max_model_len=budget.max_model_len,
        max_num_seqs=budget.max_num_seqs,
        max_num_batched_tokens=budget.max_num_batched_tokens,
    )


def _attention_heads(config: Mapping[str, Any]) -> int | None:
    """Of the language model, wherever a family keeps its configuration."""
    whole = config.get("thinker_config", config)
    for part in ("text_config", "llm_config", "language_config"):
        if isinstance(whole, Mapping) and isinstance(whole.get(part), Mapping):
            whole = whole[part]
    heads = whole.get("num_attention_heads") if isinstance(whole, Mapping) else None
    return heads if isinstance(heads, int) else None
