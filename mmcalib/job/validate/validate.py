"""Whether a configuration that somebody wrote does what it says: its file, limits and engine."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmcalib.census.accesses import Accesses
from mmcalib.checks.catalogue.engine import BATCH_HOLDS_ITEM, ENGINE_START
from mmcalib.checks.catalogue.file import ROUND_TRIP
from mmcalib.checks.catalogue.reserve import RESERVED
from mmcalib.checks.catalogue.size_hints import SIZE_HINT
from mmcalib.checks.check import Check
from mmcalib.checks.judge import option_traps
from mmcalib.engine.host import EngineHost
from mmcalib.errors import CorpusError, EngineDied, UsageError
from mmcalib.geometry import resolve
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.memory.checks import known_in_bytes, predicted_shortfall
from mmcalib.job.memory.prediction import MemoryPrediction
from mmcalib.job.memory.rehearse import Rehearsals, gpu_of, on_gpu
from mmcalib.job.memory.tokens_alone import Unrehearsed, in_tokens, no_gpu
from mmcalib.job.proof.prove import ReplaySource, prove
from mmcalib.job.proof.startup import Launch
from mmcalib.job.read import Corpus, files_of
from mmcalib.job.spec import cache_dir
from mmcalib.job.validate.document import document
from mmcalib.job.validate.findings import findings
from mmcalib.job.validate.found import Asked, Found
from mmcalib.job.validate.items import Media, made_up, measured, probed, read_media
from mmcalib.job.validate.memory import (
    ServedMemory,
    begun,
    checks,
    figures,
    unrehearsed,
    with_own_items,
    with_worst_steps,
)
from mmcalib.job.validate.reading import read_config
from mmcalib.job.validate.settings import setting_checks
from mmcalib.job.validate.subject import asking, budgeted, here, opened_as
from mmcalib.options.checked import checked
from mmcalib.options.validate import STARTUP_BUDGET_S, Depth, ProofOptions
from mmcalib.progress import Progress, Silent
from mmcalib.result.validation import Validation
from mmcalib.scratch import Scratch


def validate(
    config: str | os.PathLike[str],
    *,
    model: str | None = None,
    data: Sequence[str | os.PathLike[str]] = (),
    requests: Sequence[str | os.PathLike[str]] = (),
    allowed_local_media_path: str | os.PathLike[str] | None = None,
    gpu: str | Gpu | None = None,
    flags: Sequence[str] = (),
    validate: Depth = "replay",
    startup_budget_s: float = STARTUP_BUDGET_S,
    progress: Progress | None = None,
) -> Validation:
    """Judge a file for `vllm serve --config`, with `flags` on top.

    `data` and `requests` are what will be served; without them made-up items stand for it. `gpu` is
    the one that will serve, whose memory is then rehearsed. Raises `mmcalib.errors.MmcalibError`
    where there is nothing to judge.
    """
    proof = checked(ProofOptions, {"validate": validate, "startup_budget_s": startup_budget_s})
    root = Path(allowed_local_media_path) if allowed_local_media_path else None
    asked = Asked(
        config=Path(config),
        flags=tuple(flags),
        model=model,
        media=Media(tuple(map(Path, data)), tuple(map(Path, requests)), root),
        gpu=gpu_of(gpu) if isinstance(gpu, str) else gpu,
        depth=proof.validate,
        startup_budget_s=proof.startup_budget_s,
    )
    if not asked.config.is_file():
        raise UsageError(
            f"--config {asked.config}: no such file", hint="--config names what vllm serve reads"
        )
    for option, path in [*(("data", p) for p in data), *(("requests", p) for p in requests)]:
        if not os.path.exists(path):
            raise CorpusError(
                f"--{option} {path}: no such file or folder",
                hint=f"ls {os.path.dirname(path) or '.'}",
            )
    progress = progress or Silent()
    with EngineHost(on_said=progress.note, on_log=progress.log) as host:
        return judge(asked, host, progress)


def judge(asked: Asked, host: EngineHost, progress: Progress) -> Validation:
    """The same in an engine process that is there already; a start leaves its engine in it."""
    found = Found()
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(Scratch()).path
        _read(found, asked, host, scratch, progress)
        if found.engine_args is not None:
            corpus = read_media(asked.media, progress) if asked.media.given else None
            _find_model(found, asked, progress, stack)
            _judge(found, asked, corpus, host, scratch, progress)
        return document(found, asked)


def _read(found: Found, asked: Asked, host: EngineHost, scratch: Path, progress: Progress) -> None:
    """Raises UsageError where nobody names a model."""
    with progress.step("reading the configuration"):
        read = read_config(host, asked.config, asked.flags, asked.model, scratch)
    found.checks += read.checks
    found.engine_args, found.model = read.engine_args, read.model or asked.model or ""
    found.served = read.served
    if read.engine_args is not None and not found.model:
        raise UsageError("no model is named", hint="--model MODEL, or `model:` in the file")


def _find_model(
    found: Found, asked: Asked, progress: Progress, stack: contextlib.ExitStack
) -> None:
    with progress.step("finding the model"):
        resolved = found.resolved = resolve(found.model, cache_dir=cache_dir())
    for note in resolved.notes[:1]:
        progress.note(note)
    if asked.gpu is not None:
        rehearsals = Rehearsals(asked.gpu, on_said=progress.note, on_log=progress.log)
        stack.enter_context(rehearsals)
        base, fatal = {"model": resolved.path}, (EngineDied,)
        prediction = MemoryPrediction(asked.gpu, rehearsals, base, fatal)
        found.memory = begun(stack.enter_context(prediction), found.engine_args or {}, progress)


def _judge(
    found: Found,
    asked: Asked,
    corpus: Corpus | None,
    host: EngineHost,
    scratch: Path,
    progress: Progress,
) -> None:
    """Fill in what can be found; what vLLM refuses ends it early, as a failed check."""
    resolved, args, memory = found.resolved, found.engine_args, found.memory
    if resolved is None or args is None:
        return
    opened = opened_as(host, resolved, args, progress)
    if isinstance(opened, Check):
        found.checks.append(opened)
        return
    opened = on_gpu(opened, memory.config if memory else None)
    asks = asking(host, opened, resolved)
    subject, refused = budgeted(asks, resolved, args, progress)
    found.subject = subject
    found.checks += refused
    if subject is None:
        return
    if memory is not None:
        memory = with_worst_steps(memory, subject)
    found.checks += findings(subject, asks, memory, has_data=corpus is not None)
    for trap in option_traps(args, found.served, figures(subject, memory)):
        found.checks.append(trap.check)
        found.taken += [trap.taken] if trap.taken else []
    if corpus is not None:
        found.items = "corpus"
        found.prompts, found.skipped = corpus.prompts.prompts(), len(corpus.skipped)
        found.checks += measured(corpus, subject, asks, progress)
        if memory is not None:
            memory = with_own_items(memory, subject)
            known = known_in_bytes(memory.config)
            found.checks = [check for check in found.checks if check.id not in known]
    else:
        found.checks += probed(subject, host, progress)
    found.checks += setting_checks(subject, host, progress)
    if any(
        check.id in (ROUND_TRIP, BATCH_HOLDS_ITEM) and check.status == "fail"
        for check in found.checks
    ):
        why = "vLLM refuses the file as it is"
        found.checks.append(Check(ENGINE_START, "skip", f"not started: {why}"))
    elif asked.depth == "budget":
        found.checks.append(Check(ENGINE_START, "skip", "not started: --validate budget"))
    else:
        if corpus is None and asked.depth == "replay":
            corpus = made_up(subject, host, scratch / "media", progress)
            found.items = "made up" if corpus else "none"
        source = None
        if asked.depth == "replay" and corpus is not None:
            source = ReplaySource(corpus.prompts, files_of(corpus))
        launch = Launch(
            Path(resolved.path),
            here(subject.engine_args, opened.device),
            subject.budget,
            opened.device,
            scratch,
            asked.startup_budget_s,
        )
        remedy = "change what vLLM names"
        found.proof = prove(host, launch, subject, source, progress, remedy=remedy)
        found.checks += found.proof.checks
    found.memory = memory
    if memory is not None:
        accesses = corpus.accesses if corpus is not None else Accesses()
        config = str(asked.config)
        more = list(checks(memory, subject, found.proof.started, config, accesses))
        found.checks = in_bytes(found.checks, more)
    if memory is None or predicted_shortfall(memory.predicted, subject) is None:
        found.checks = in_tokens(found.checks, subject, _unrehearsed(asked, memory))


def _unrehearsed(asked: Asked, memory: ServedMemory | None) -> Unrehearsed:
    config = str(asked.config)
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
