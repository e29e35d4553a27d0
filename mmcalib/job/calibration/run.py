"""The whole job: read, measure, decide, write, prove."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import replace
from pathlib import Path

from mmcalib.census.sample import choose
from mmcalib.checks.catalogue.engine import ENGINE_START
from mmcalib.checks.check import Check
from mmcalib.derive.policy import Policy
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.errors import EngineDied, EngineError, ModelError
from mmcalib.files import write_text
from mmcalib.geometry import ResolvedModel, resolve
from mmcalib.job.calibration.assemble import Findings, assemble, engine_config
from mmcalib.job.calibration.findings import findings
from mmcalib.job.calibration.reserving import in_bytes
from mmcalib.job.calibration.served import served
from mmcalib.job.calibration.taken_in import environment, server_checks, taken_in
from mmcalib.job.decision.budgets import Budgets
from mmcalib.job.decision.cache import size_cache
from mmcalib.job.decision.decide import Rejects, accept_all, decide
from mmcalib.job.decision.effects import effective
from mmcalib.job.decision.texts import Texts
from mmcalib.job.device import beside, require_cuda
from mmcalib.job.gate.calibration import Calibration
from mmcalib.job.gate.rules import prove_rules
from mmcalib.job.memory.checks import memory_checks
from mmcalib.job.memory.explored import as_served, begin, predicted, rehearsing, rejecting
from mmcalib.job.memory.prediction import MemoryPrediction
from mmcalib.job.memory.rehearse import Rehearsals
from mmcalib.job.memory.sizes import on_the_same_gpu, rehearsed_sizes, sizes_check
from mmcalib.job.memory.tokens_alone import in_tokens, no_gpu
from mmcalib.job.opening import open_model, takes_no_media
from mmcalib.job.proof.default import start_default
from mmcalib.job.proof.processor_device import compare_apart, compared_check
from mmcalib.job.proof.prove import ReplaySource, prove
from mmcalib.job.proof.round_trip import round_trip
from mmcalib.job.proof.startup import Launch
from mmcalib.job.proof.sweep import sweep, sweep_check
from mmcalib.job.read import Corpus, files_of, read
from mmcalib.job.spec import Job, Outcome, cache_dir
from mmcalib.progress import Progress
from mmcalib.result.engine_yaml import engine_yaml
from mmcalib.scratch import Scratch


def run(job: Job, outcome: Outcome, progress: Progress) -> Calibration:
    """Do the job; `outcome` holds each step's result as soon as there is one."""
    require_cuda(job.device)
    cache = job.cache_dir or cache_dir()
    with Scratch() as scratch:
        with progress.step("finding the model"):
            resolved = resolve(job.model, cache_dir=cache)
        corpus = read(
            job.data,
            job.requests,
            allowed_root=job.allowed_root,
            allow_url=job.allow_url,
            cache=cache,
            progress=progress,
            how=job.probe,
        )
        outcome.skipped.extend(corpus.skipped)
        outcome.now(None)
        for note in resolved.notes[:1]:
            progress.note(note)
        with contextlib.ExitStack() as children:
            prediction = None
            if job.gpu is not None:
                rehearsals = Rehearsals(job.gpu, on_log=progress.log)
                children.enter_context(rehearsals)
                base = {"model": resolved.path}
                prediction = MemoryPrediction(job.gpu, rehearsals, base)
                children.enter_context(prediction).begin(_given(job.policy))
            host = children.enter_context(EngineHost(on_said=progress.note, on_log=progress.log))
            return _calibrate(
                job, outcome, progress, scratch.path, corpus, resolved, host, prediction
            )


def _given(policy: Policy) -> dict[str, int | float]:
    """What the user said of the engine, which the default configuration has too."""
    said = {
        "max_model_len": policy.context_tokens,
        "gpu_memory_utilization": policy.gpu_memory_utilization,
    }
    return {name: value for name, value in said.items() if value is not None}


def _open(
    host: EngineHost, resolved: ResolvedModel, policy: Policy, progress: Progress
) -> ModelInfo:
    """Raises ModelError where vLLM refuses it, or has nothing to calibrate."""
    text_only = takes_no_media(resolved, ": there is nothing to calibrate")
    tokens = policy.context_tokens
    try:
        return open_model(host, resolved, progress, context_tokens=tokens, text_only=text_only)
    except EngineDied:
        raise
    except EngineError as error:
        raise ModelError(f"vLLM cannot open {resolved.id}: {error.message}") from error


def _calibrate(
    job: Job,
    outcome: Outcome,
    progress: Progress,
    scratch: Path,
    corpus: Corpus,
    resolved: ResolvedModel,
    host: EngineHost,
    prediction: MemoryPrediction | None,
) -> Calibration:
    opened = _open(host, resolved, job.policy, progress)
    default = _given(job.policy)
    if prediction:
        opened = as_served(opened, default, prediction)
    items = corpus.census.items()
    corpus, refused = taken_in(corpus, opened.server)
    corpus, left_out = served(corpus, opened, job.policy)
    too = beside(job.device, host, opened, list(corpus.census.modalities()))
    sample = choose(corpus.census, job.sample, job.seed)
    handed = files_of(corpus, job.probe.item_timeout_s)
    budgets = Budgets(host, opened, resolved.path, job.policy, files=handed)
    rejects: Rejects = accept_all
    if prediction:
        rejects = rejecting(prediction, job.policy.concurrency, progress)
    texts = Texts.of(host, opened.modalities, corpus.texts)
    if resolved.source == "bundled":
        texts.uncounted = "a bundled geometry has a tokenizer that was made up"
    else:
        texts.find_recipe(opened.modalities)
    decision = decide(corpus.census, corpus.prompts, sample, budgets, progress, rejects, texts)
    floor = decision.cache_floor()
    decision = decision.with_cache(
        size_cache(corpus.accesses, decision.table, decision.counts, floor, opened, job.policy)
    )
    decision = effective(decision, budgets, progress)
    outcome.skipped.extend(decision.unreadable)
    known = Findings(resolved, opened, corpus, decision, job.policy, skipped=len(outcome.skipped))
    known.gpu, known.texts = job.gpu, texts
    known.rules = prove_rules(host, opened, decision, progress)
    seen = replace(corpus, skipped=tuple(outcome.skipped))
    known.needed = environment(refused, opened.server)
    known.checks += server_checks(refused, items, known.needed)
    known.checks += findings(seen, left_out, decision, job.policy)
    if prediction is None:
        known.checks = in_tokens(known.checks, decision, no_gpu("mmcalib run --gpu NAME --force"))
    if too:
        known.compared = compare_apart(
            resolved.path,
            job.policy.context_tokens,
            too,
            decision.setting,
            sample,
            progress,
            handed,
        )
        known.checks.append(compared_check(known.compared))
    if prediction:
        begin(prediction, default, decision)
    outcome.now(assemble(known))
    if job.validate != "none":
        path = scratch / "engine.yaml"
        write_text(path, engine_yaml(assemble(known), "vllm serve --config engine.yaml"))
        config = engine_config(resolved, decision.engine_args)
        known.checks.append(round_trip(host, path, config))
    if job.validate in ("startup", "replay"):
        launch = Launch(
            Path(resolved.path),
            decision.engine_args,
            decision.budget,
            opened.device,
            scratch,
            job.startup_budget_s,
        )
        source = ReplaySource(corpus.prompts, handed) if job.validate == "replay" else None
        remedy = "--validate budget starts nothing"
        proof = prove(host, launch, decision, source, progress, remedy=remedy)
        known.started, known.burst, known.replayed = proof.started, proof.burst, proof.replayed
        known.checks += proof.checks
        if job.encoder_sweep and proof.failure is None:
            known.sweep = sweep(host, opened, decision, job.startup_budget_s, progress)
            known.checks.append(sweep_check(known.sweep))
        outcome.now(assemble(known))
        host.close()
        default_launch = replace(
            launch,
            engine_args={"max_model_len": opened.max_model_len},
            budget=decision.default_budget,
            scratch=scratch / "default",
        )
        compared = start_default(default_launch, known.started, decision, progress)
        known.default_started = compared.started
        known.checks.append(compared.check)
    else:
        detail = f"not asked for: --validate {job.validate}"
        known.checks.append(Check(ENGINE_START, "skip", detail, "--validate replay"))
    if prediction:
        known.predicted = predicted(prediction, default, decision, progress)
        every = rehearsing(prediction, progress)
        if known.sweep:
            known.rehearsed_sizes = rehearsed_sizes(every, decision, known.sweep)
            check = sizes_check(known.rehearsed_sizes, known.sweep)
            if check is not None and on_the_same_gpu(known.predicted, known.started):
                known.checks.append(check)
        known.checks = in_bytes(
            known.checks,
            known.predicted,
            decision,
            job.policy,
            every,
            corpus.accesses,
            shlex.join(["mmcalib", "rehearse", "--model", job.model]),
        )
        known.checks += memory_checks(
            known.predicted, known.started, resolved.path, job.policy.concurrency
        )
    result = assemble(known, finished=True)
    outcome.now(result)
    return result
