"""Run the stages of a validation and build its document."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mmcalib.checks.catalogue import CONFIG_PARSING, ITEM_BATCH
from mmcalib.checks.check import Check, RemedyStyle, Taken, verdict
from mmcalib.checks.engine import skipped_start_check
from mmcalib.checks.file import unreadable_file_check
from mmcalib.checks.reserve import no_gpu
from mmcalib.configs.opening import FoundConfiguration, find_configuration
from mmcalib.configs.read import read_configuration
from mmcalib.engine.host import CachingHost
from mmcalib.errors import CorpusError, UsageError
from mmcalib.files import Scratch
from mmcalib.models.gpus import Gpu, resolve_gpu
from mmcalib.options.option import make_options
from mmcalib.options.run import STARTUP_BUDGET_S, Depth, ProofOptions
from mmcalib.prediction.rehearse import budget_figures, memory_figures
from mmcalib.progress import Progress, StepLog
from mmcalib.proof.prove import Launch, Proof, ReplaySource, measured_memory, prove, startup_figures
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import ValidatedBudgets, ValidatedMemory, Validation
from mmcalib.storage.location import allow_hosts
from mmcalib.version import __version__
from mmcalib.workflows.corpus import corpus_figures, files_of, read_corpus
from mmcalib.workflows.judging import explain_unrehearsed, judge_memory
from mmcalib.workflows.validate.findings import add_synthetic_media, examine_config
from mmcalib.workflows.validate.subject import (
    ValidatedConfig,
    ValidateJob,
    checks_in_bytes,
    open_config,
    parse_config,
    rehearse_config,
)

Items = Literal["none", "corpus", "made up"]


def try_config(
    job: ValidateJob, subject: ValidatedConfig, before: Sequence[Check]
) -> tuple[ValidatedConfig, Proof, Items]:
    """Start the engine and replay, up to the job's depth, unless vLLM rejects the file. Return the
    subject with the costs of the items that it was tried with, the proof, and what items these are.
    """
    depth = job.proof.validate
    items: Items = "none" if subject.corpus is None else "corpus"
    refused = any(c.id in (CONFIG_PARSING, ITEM_BATCH) and c.status == "fail" for c in before)
    if refused or depth == "budget":
        check = skipped_start_check(depth, RemedyStyle.LINES, rejected=refused)
        return subject, Proof(checks=(check,)), items
    source = None
    if depth == "replay" and subject.opened.starts_engines:
        if subject.corpus is None:
            subject = add_synthetic_media(subject, job.scratch / "media")
            items = "none" if subject.corpus is None else "made up"
        if subject.corpus is not None:
            source = ReplaySource(subject.corpus.prompts, files_of(subject.corpus))
    path, budget_s = Path(subject.resolved.path), job.proof.startup_budget_s
    launch = Launch(subject, subject.opened, path, job.scratch, budget_s, job.gpu)
    remedy = "change the option that vLLM names"
    return subject, prove(job.host, launch, source, job.progress, remedy=remedy), items


def merge_checks(before: Sequence[Check], subject: ValidatedConfig, proof: Proof) -> list[Check]:
    """Merge the checks of all stages; `before` are those from before the engine's start."""
    memory, checks = subject.memory, (*before, *proof.checks)
    if memory is None:
        unrehearsed = no_gpu(subject.written.command("validate", "NAME"))
        return judge_memory(checks, (), subject, unrehearsed)
    more = list(checks_in_bytes(memory, subject, proof.started))
    unrehearsed = explain_unrehearsed(memory, subject.written)
    return judge_memory(checks, more, subject, unrehearsed)


def build_document(
    job: ValidateJob,
    found: FoundConfiguration | None,
    checks: Sequence[Check],
    engine_args: dict[str, Any] | None = None,
) -> Validation:
    """Build the document without figures; nothing is found if the file is unreadable."""
    resolved = found.resolved if found else None
    return Validation(
        checks=list(map(CheckResult.from_value, checks)),
        verdict=verdict(checks),
        config=str(job.written.source or ""),
        flags=list(job.written.flags),
        model=resolved.id if resolved else job.written.model or "",
        source=resolved.source if resolved else None,
        engine_config=engine_args,
        gpu=job.gpu.name if job.gpu else "",
        tool={"mmcalib": __version__},
        doubts=[*found.notes, *found.resolved.notes] if found else [],
    )


def add_figures(
    document: Validation,
    subject: ValidatedConfig,
    proof: Proof,
    items: Items,
    taken: Sequence[Taken],
) -> Validation:
    """Add the figures of a finished validation; `taken` is the memory of single options."""
    corpus = subject.corpus if items == "corpus" else None
    skipped = len(corpus.skipped) if corpus else 0
    table = subject.table if subject.table.costs else None
    budget = budget_figures(subject.budget, subject.adequacy, table)
    if subject.engine_args.get("skip_mm_profiling"):
        budget = budget.model_copy(update={"profiled_items": 0, "profiled_modality": None})
    usual = budget_figures(subject.default_budget)
    predicted = subject.memory
    default, config = (predicted.default, predicted.calibrated) if predicted else (None, None)
    return document.model_copy(
        update={
            "architecture": subject.opened.architecture,
            "budget": ValidatedBudgets(default=usual, config=budget),
            "memory": ValidatedMemory(
                default=memory_figures(default, predicted.gpu) if default and predicted else None,
                config=memory_figures(config, predicted.gpu) if config and predicted else None,
                measured=measured_memory(proof.started, own=True) if proof.started else None,
                options=list(taken),
            ),
            "startup": startup_figures(proof),
            "items": items,
            "corpus": corpus_figures(table, corpus, skipped) if table else None,
            "tool": {"mmcalib": __version__, **subject.opened.versions},
        }
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
    """Check a configuration: a file in any form, `flags` of `vllm serve`, or both.

    `data` and `requests` are the media to serve; without them synthetic items are used. With `gpu`,
    the GPU to serve on, its memory is rehearsed too. Raises MmcalibError if nothing can be checked.
    """
    proof = make_options(ProofOptions, {"validate": validate, "startup_budget_s": startup_budget_s})
    written = read_configuration(Path(config) if config else None, flags, model)
    if written.source is None and not written.flags and model is None:
        raise UsageError(
            "nothing to validate: no file and no flags", hint="mmcalib validate engine.yaml"
        )
    device = resolve_gpu(gpu) if isinstance(gpu, str) else gpu
    for option, path in [*(("data", p) for p in data), *(("requests", p) for p in requests)]:
        if not os.path.exists(path):
            hint = f"ls {os.path.dirname(path) or '.'}"
            raise CorpusError(f"--{option} {path}: no such file or folder", hint=hint)
    progress = progress or StepLog()
    with (
        allow_hosts(allowed_media_domains),
        CachingHost(on_note=progress.note, on_log=progress.log) as host,
        Scratch() as scratch,
    ):
        job = ValidateJob(
            written,
            host,
            scratch.path,
            progress,
            data=tuple(map(Path, data)),
            requests=tuple(map(Path, requests)),
            allowed_root=Path(allowed_local_media_path) if allowed_local_media_path else None,
            gpu=device,
            proof=proof,
        )
        return validate_with(job)


def validate_with(job: ValidateJob) -> Validation:
    """Validate in the job's engine process; an engine that it starts stays in there."""
    if broken := job.written.broken:
        return build_document(job, None, [unreadable_file_check(broken)])
    found = find_configuration(job.written, job.progress)
    with job.progress.step("reading the configuration"):
        parsed, before = parse_config(job.host, job.written, job.scratch)
    if parsed is None:
        return build_document(job, found, before)
    root, progress = job.allowed_root, job.progress
    read = partial(read_corpus, job.data, job.requests, allowed_root=root, progress=progress)
    corpus = read() if job.data or job.requests else None
    args = {name: value for name, value in parsed.engine_args.items() if name != "model"}
    for note in found.resolved.notes[:1]:
        job.progress.note(note)
    with rehearse_config(job, args, found.resolved) as memory:
        subject, refused = open_config(job, args, found.resolved, memory)
        before += refused
        if subject is None:
            return build_document(job, found, before, args)
        if corpus is not None and corpus.is_sound_only_for(subject.opened.modalities):
            corpus = read(sound=True)
        subject = replace(subject, corpus=corpus)
        subject, findings, taken = examine_config(subject, parsed.values)
        before += findings
        subject, proof, items = try_config(job, subject, before)
        document = build_document(job, found, merge_checks(before, subject, proof), args)
        return add_figures(document, subject, proof, items, taken)
