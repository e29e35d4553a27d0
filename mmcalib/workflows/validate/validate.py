"""Stages in order; document."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from mmcalib.census.accesses import Accesses
from mmcalib.checks.check import Check, verdict
from mmcalib.checks.file import ROUND_TRIP
from mmcalib.checks.reserve import BATCH_HOLDS_ITEM, ENGINE_START, RESERVED, SIZE_HINT
from mmcalib.engine.config_forms import read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.engine.vllm_config import here, serves
from mmcalib.errors import CorpusError, UsageError
from mmcalib.files import Scratch
from mmcalib.memory.checks import Unrehearsed, in_tokens, no_gpu, predicted_shortfall
from mmcalib.memory.figures import encoder_budget, memory
from mmcalib.memory.rehearse import gpu_of
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.options.option import make_options
from mmcalib.options.run import STARTUP_BUDGET_S, Depth, ProofOptions
from mmcalib.progress import Progress, StepLog
from mmcalib.proof.prove import Proof, ReplaySource, measured_memory, prove, startup_figures
from mmcalib.proof.start import Launch, Started, not_started
from mmcalib.results.part import CheckResult
from mmcalib.results.validation import TakenMemory, ValidatedBudgets, ValidatedMemory, Validation
from mmcalib.storage.location import allowing
from mmcalib.version import __version__
from mmcalib.workflows.corpus import ReadCorpus, corpus_figures, files_of
from mmcalib.workflows.validate.config import (
    Media,
    ReadableConfig,
    UnreadableConfig,
    ValidateJob,
    ValidateSession,
    read_file,
)
from mmcalib.workflows.validate.findings import Examined, examine, made_up, read_media
from mmcalib.workflows.validate.subject import (
    RefusedConfig,
    ServedMemory,
    Subject,
    checks,
    find_model,
    memory_of,
    open_config,
    unrehearsed,
)


@dataclass(frozen=True, slots=True)
class TriedConfig:
    """`subject` has the costs of `corpus`, whose `items` it was tried with."""

    subject: Subject
    corpus: ReadCorpus | None
    items: Literal["none", "corpus", "made up"]
    checks: tuple[Check, ...]
    proof: Proof = field(default_factory=Proof)


def try_config(
    session: ValidateSession, examined: Examined, before: Sequence[Check]
) -> TriedConfig:
    """As far as the job wants it, and not at all where vLLM refuses the file, as `before` says."""
    subject, corpus, depth = examined.subject, examined.corpus, session.job.depth
    items: Literal["none", "corpus", "made up"] = "none" if corpus is None else "corpus"
    refused = any(c.id in (ROUND_TRIP, BATCH_HOLDS_ITEM) and c.status == "fail" for c in before)
    if refused or depth == "budget":
        why = "vLLM refuses the file as it is" if refused else "--validate budget"
        check = Check(ENGINE_START, "skip", f"not started: {why}")
        return TriedConfig(subject, corpus, items, (check,))
    if none := not_started(subject.opened):
        return TriedConfig(subject, corpus, items, (none,))
    if corpus is None and depth == "replay":
        made = made_up(subject, session.host, session.scratch / "media", session.progress)
        if made is not None:
            (subject, corpus), items = made, "made up"
    source = None
    if depth == "replay" and corpus is not None:
        source = ReplaySource(corpus.prompts, files_of(corpus))
    device = subject.opened.device
    launch = Launch(
        Path(subject.resolved.path),
        here(subject.engine_args, device),
        subject.budget,
        device,
        session.scratch,
        session.job.startup_budget_s,
        serves(device, session.job.gpu),
        session.job.gpu is not None,
    )
    remedy = "change what vLLM names"
    proof = prove(session.host, launch, subject, source, session.progress, remedy=remedy)
    return TriedConfig(subject, corpus, items, proof.checks, proof)


def concluded(
    before: Sequence[Check], tried: TriedConfig, memory: ServedMemory | None, config: str
) -> list[Check]:
    """All checks, of which those `before` come from the other stages."""
    subject, found = tried.subject, list(before)
    if memory is not None:
        accesses = tried.corpus.accesses if tried.corpus is not None else Accesses()
        more = list(checks(memory, subject, tried.proof.started, config, accesses))
        found = in_bytes(found, more)
    if memory is None or predicted_shortfall(memory.predicted, subject) is None:
        found = in_tokens(found, subject, _unrehearsed(config, memory))
    return found


def _unrehearsed(config: str, memory: ServedMemory | None) -> Unrehearsed:
    if memory is not None:
        return unrehearsed(memory, config)
    return no_gpu(shlex.join(["mmcalib", "validate", "--config", config, "--gpu", "NAME"]))


def in_bytes(before: list[Check], memory: list[Check]) -> list[Check]:
    """R4 in bytes decides; the cures of the one in tokens are its cures too."""
    tokens = next((check for check in before if check.id == RESERVED), None)
    if tokens is None or all(check.id != RESERVED for check in memory):
        return [*before, *memory]
    cures = tokens.remedy if tokens.status == "fail" else ""
    memory = [
        replace(c, remedy=cures or c.remedy) if c.id == RESERVED and c.status == "fail" else c
        for c in memory
    ]
    known = {check.id for check in before if check.status == "fail"}
    memory = [check for check in memory if check.id == RESERVED or check.id not in known]
    kept = [check for check in before if check.id != RESERVED]
    if any(c.id == RESERVED and c.status == "pass" for c in memory):
        kept = [
            replace(c, status="warn") if SIZE_HINT.covers(c.id) and c.status == "fail" else c
            for c in kept
        ]
    return [*kept, *memory]


def unread(job: ValidateJob, config: UnreadableConfig) -> Validation:
    """Of a file that vLLM cannot read."""
    return Validation(
        checks=list(map(CheckResult.showing, config.checks)),
        verdict=verdict(config.checks),
        config=str(job.config or ""),
        flags=list(job.flags),
        model=config.model,
        source=None,
        architecture="",
        engine_config=None,
        budget=None,
        memory=None,
        startup=None,
        items="none",
        gpu=job.gpu.name if job.gpu else "",
        tool={"mmcalib": __version__},
        doubts=[],
    )


def refused(job: ValidateJob, config: ReadableConfig, found: RefusedConfig) -> Validation:
    """Of a configuration that vLLM does not take."""
    checks = (*config.checks, *found.checks)
    return _of_model(job, config, found.resolved, checks)


def judged(
    job: ValidateJob,
    config: ReadableConfig,
    examined: Examined,
    tried: TriedConfig,
    checks: Sequence[Check],
) -> Validation:
    """Of one that was judged to its end, with all its checks."""
    subject, proof, corpus = tried.subject, tried.proof, examined.corpus
    prompts, skipped = (corpus.prompts.prompts(), len(corpus.skipped)) if corpus else (0, 0)
    return _of_model(job, config, subject.resolved, checks).model_copy(
        update={
            "architecture": subject.opened.architecture,
            "budget": _budgets(subject),
            "memory": _memory(examined, proof.started),
            "startup": startup_figures(proof.started, proof.burst, proof.replayed),
            "items": tried.items,
            "corpus": corpus_figures(subject.table, prompts, skipped)
            if subject.table.costs
            else None,
            "tool": {"mmcalib": __version__, **subject.opened.versions},
        }
    )


def _of_model(
    job: ValidateJob, config: ReadableConfig, resolved: ResolvedModel, checks: Sequence[Check]
) -> Validation:
    unknown = unread(job, UnreadableConfig(resolved.id, tuple(checks)))
    return unknown.model_copy(
        update={
            "source": resolved.source,
            "engine_config": config.engine_args,
            "doubts": list(resolved.notes),
        }
    )


def _budgets(subject: Subject) -> ValidatedBudgets:
    counts = {m: count.value for m, count in subject.counts.items()}
    config = encoder_budget(subject.budget, counts, subject.table if subject.table.costs else None)
    if subject.engine_args.get("skip_mm_profiling"):
        config = config.model_copy(
            update={
                "profiled_tokens": 0,
                "profiled_items": 0,
                "profiled_modality": None,
                "adequacy": 0.0,
            }
        )
    return ValidatedBudgets(default=encoder_budget(subject.default_budget), config=config)


def _memory(examined: Examined, started: Started | None) -> ValidatedMemory:
    predicted = examined.memory.predicted if examined.memory else None
    default, config = (predicted.default, predicted.calibrated) if predicted else (None, None)
    return ValidatedMemory(
        default=memory(default, predicted.gpu) if default and predicted else None,
        config=memory(config, predicted.gpu) if config and predicted else None,
        measured=measured_memory(started, own=True) if started else None,
        options=[TakenMemory(what=one.what, bytes=one.nbytes) for one in examined.taken],
    )


def validate(
    config: str | os.PathLike[str] | None = None,
    *,
    model: str | None = None,
    data: Sequence[str | os.PathLike[str]] = (),
    requests: Sequence[str | os.PathLike[str]] = (),
    allowed_local_media_path: str | os.PathLike[str] | None = None,
    allowed_media_domains: Sequence[str] = (),
    gpu: str | Gpu | None = None,
    flags: Sequence[str] = (),
    validate: Depth = "replay",
    startup_budget_s: float = STARTUP_BUDGET_S,
    progress: Progress | None = None,
) -> Validation:
    """Judge a configuration: a file that holds one in any form, `flags` of `vllm serve`, or both.

    `data` and `requests` are what will be served; without them made-up items stand for it. `gpu` is
    the one that will serve, whose memory is then rehearsed. Raises `mmcalib.errors.MmcalibError`
    where there is nothing to judge.
    """
    proof = make_options(ProofOptions, {"validate": validate, "startup_budget_s": startup_budget_s})
    root = Path(allowed_local_media_path) if allowed_local_media_path else None
    written = read_configuration(Path(config) if config else None, flags, model)
    if written.source is None and not written.flags and model is None:
        raise UsageError(
            "nothing to validate: neither a file nor flags", hint="mmcalib validate engine.yaml"
        )
    job = ValidateJob(
        config=written.source,
        flags=written.flags,
        model=written.model,
        media=Media(tuple(map(Path, data)), tuple(map(Path, requests)), root),
        gpu=gpu_of(gpu) if isinstance(gpu, str) else gpu,
        depth=proof.validate,
        startup_budget_s=proof.startup_budget_s,
    )
    for option, path in [*(("data", p) for p in data), *(("requests", p) for p in requests)]:
        if not os.path.exists(path):
            raise CorpusError(
                f"--{option} {path}: no such file or folder",
                hint=f"ls {os.path.dirname(path) or '.'}",
            )
    progress = progress or StepLog()
    with (
        allowing(allowed_media_domains),
        EngineHost(on_said=progress.note, on_log=progress.log) as host,
    ):
        return judge(job, host, progress)


def judge(job: ValidateJob, host: EngineHost, progress: Progress) -> Validation:
    """The same in an engine process that is there already; a start leaves its engine in it."""
    with Scratch() as scratch:
        session = ValidateSession(job, host, scratch.path, progress)
        config = read_file(session)
        if isinstance(config, UnreadableConfig):
            return unread(job, config)
        corpus = read_media(job.media, progress) if job.media.given else None
        resolved = find_model(session, config)
        with memory_of(session, config, resolved) as memory:
            opened = open_config(session, config, resolved, memory)
            if isinstance(opened, RefusedConfig):
                return refused(job, config, opened)
            examined = examine(session, config, opened, corpus)
            before = (*config.checks, *opened.checks, *examined.checks)
            tried = try_config(session, examined, before)
            name = str(job.config or "FILE")
            checks = concluded((*before, *tried.checks), tried, examined.memory, name)
            return judged(job, config, examined, tried, checks)
