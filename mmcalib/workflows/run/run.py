"""Run the stages of a calibration; the library's `calibrate`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmcalib.admission.calibration import Calibration
from mmcalib.configs.opening import find_configuration, is_serving_gpu
from mmcalib.errors import CorpusError, MmcalibError, UsageError, VerdictError, VllmMissing
from mmcalib.limits.policy import Policy
from mmcalib.models.gpus import Gpu, resolve_gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.options.option import make_options
from mmcalib.options.run import (
    SAMPLE_PER_MODALITY,
    STARTUP_BUDGET_S,
    Device,
    RunOptions,
    Validate,
    policy_options,
    read_policy,
)
from mmcalib.progress import Interruptible, Progress, StepLog
from mmcalib.proof.prove import require_cuda
from mmcalib.results.engine_yaml import engine_yaml
from mmcalib.storage.location import allow_hosts
from mmcalib.workflows.corpus import read_corpus
from mmcalib.workflows.run import stages
from mmcalib.workflows.run.document import build_calibration
from mmcalib.workflows.run.session import Job, RunOutcome, Shared, open_session


def run(job: Job, outcome: RunOutcome, progress: Progress) -> Calibration:
    """Run the job; `outcome` gets each step's result at once and keeps it if a later step fails."""
    (resolved,) = _ready([job], progress)
    with Shared() as shared:
        return _run(job, resolved, outcome, progress, shared)


def run_each(
    jobs: Sequence[Job], outcomes: Sequence[RunOutcome], progress: Progress
) -> Iterator[Calibration | MmcalibError]:
    """Yield each job's calibration or error; all share one corpus. Raises errors common to all."""
    models = _ready(jobs, progress)
    with Shared() as shared:
        for job, resolved, outcome in zip(jobs, models, outcomes, strict=True):
            try:
                calibration = _run(job, resolved, outcome, progress, shared)
                if job.options.validate in ("startup", "replay"):
                    shared.stop_host()
                yield calibration
            except MmcalibError as error:
                if shared.corpus is None and isinstance(error, CorpusError | UsageError):
                    raise
                if not isinstance(error, VerdictError):
                    shared.end_host()
                yield error


def _ready(jobs: Sequence[Job], progress: Progress) -> list[ResolvedModel]:
    """Resolve each job's model and check requirements before any slow work."""
    if find_spec("vllm") is None:
        raise VllmMissing
    models: dict[str, ResolvedModel] = {}
    for job in jobs:
        require_cuda(job.options.device)
        if job.model not in models:
            models[job.model] = find_configuration(job.config, progress).resolved
    return [models[job.model] for job in jobs]


def _run(
    job: Job, resolved: ResolvedModel, outcome: RunOutcome, progress: Progress, shared: Shared
) -> Calibration:
    with (
        allow_hosts(job.options.allowed_media_domains or ()),
        open_session(job, resolved, progress, shared) as session,
    ):
        job, given = session.job, session.job.options
        root, how = given.allowed_local_media_path, job.probe
        sources = given.data or (), given.requests or ()
        read = partial(read_corpus, *sources, allowed_root=root, how=how)
        opening = shared.open(partial(stages.open_to_calibrate, session, resolved))
        pending: list[Future[Any]] = [opening, *([session.fit] if session.fit else [])]
        if shared.corpus is None:

            def raise_failure() -> None:
                """Raise the error of the model's opening or of its fit, if there is one."""
                for future in pending:
                    if future.done():
                        future.result()

            shared.corpus = read(progress=Interruptible(progress, raise_failure))
        if job.gpu is not None and session.fit is not None:
            with progress.step(f"checking that the model fits on {job.gpu.name}"):
                session.fit.result()
        with progress.step("opening the model in vLLM"):
            opened = opening.result()
        corpus = shared.corpus
        if corpus.is_sound_only_for(opened.modalities):
            corpus = read(progress=progress, sound=True)
        outcome.skipped.extend(corpus.skipped)
        outcome.update(None)
        for note in resolved.notes[:1]:
            progress.note(note)
        served = stages.prepare(session, resolved, corpus, opened)
        decided = stages.derive(session, served)
        outcome.skipped.extend(decided.decision.unreadable)
        reviewed = stages.review(session, decided)
        stages.start_memory(session, decided)
        so_far = build_calibration(session, reviewed)
        outcome.update(so_far)
        serves = is_serving_gpu(opened.device, job.gpu)
        key = json.dumps([decided.engine_config, serves], sort_keys=True)
        if (proof := shared.proofs.get(key)) is None:
            config = engine_yaml(so_far, "vllm serve --config engine.yaml")
            proof = shared.proofs[key] = stages.prove_decision(session, decided, config)
        outcome.update(build_calibration(session, reviewed, proof))
        memory = stages.predict_memory(session, reviewed, proof)
        result = build_calibration(session, reviewed, proof, memory)
        outcome.update(result)
        return result


def calibrate(
    model: str | None = None,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    config: str | os.PathLike[str] | None = None,
    requests: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    policy: Policy | Mapping[str, Any] | None = None,
    validate: Validate = "replay",
    allowed_local_media_path: str | os.PathLike[str] | None = None,
    allowed_media_domains: Sequence[str] = (),
    sample: int = SAMPLE_PER_MODALITY,
    startup_budget_s: float = STARTUP_BUDGET_S,
    gpu: str | Gpu | None = None,
    device: Device = "cpu",
    pin_kv_cache: bool = False,
    engine_args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate vLLM for the media in `data` and `requests`, and return the result.

    `model` is a local checkpoint folder or a hub id. `config` is your present configuration in any
    form: it may name the model, and its limits are compared with the result. `policy` may be a
    dict of its fields. `gpu` names the GPU to serve on ("auto": the present one); its memory is
    then predicted. `engine_args` are the server's further arguments, such as
    `{"tensor_parallel_size": 2}`. Check `.verdict` before you use the result. Raises
    `mmcalib.errors.MmcalibError` if there is nothing to calibrate.
    """
    policy = read_policy(policy)
    root = Path(allowed_local_media_path) if allowed_local_media_path else None
    options = make_options(
        RunOptions,
        {
            **policy_options(policy),
            "model": model,
            "config": Path(config) if config else None,
            "data": [one if isinstance(one, str) else Path(one) for one in _several(data)],
            "requests": [Path(one) for one in _several(requests)],
            "allowed_local_media_path": root,
            "validate": validate,
            "allowed_media_domains": list(allowed_media_domains),
            "sample": sample,
            "startup_budget_s": startup_budget_s,
            "device": device,
            "pin_kv_cache": pin_kv_cache,
        },
    )
    where = resolve_gpu(gpu) if isinstance(gpu, str) else gpu
    job = Job.of(options, gpu=where, policy=policy, engine_args=engine_args)
    return run(job, RunOutcome(), progress or StepLog())


def _several(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> Sequence[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, str | os.PathLike) else paths
