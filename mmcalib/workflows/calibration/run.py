"""The whole job: read, serve, decide, review, prove, predict; each stage gives a frozen value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from mmcalib.engine.vllm_config import serves
from mmcalib.errors import CorpusError, MmcalibError, UsageError, VerdictError
from mmcalib.locations.domains import allowing
from mmcalib.models import ResolvedModel
from mmcalib.progress import Interruptible, Progress
from mmcalib.results.engine_yaml import engine_yaml
from mmcalib.workflows.calibration.assemble import assemble
from mmcalib.workflows.calibration.decided import derive
from mmcalib.workflows.calibration.memory_found import begin_memory, predict_memory
from mmcalib.workflows.calibration.proven import Proven, prove_decision
from mmcalib.workflows.calibration.reviewed import review
from mmcalib.workflows.calibration.served import open_to_calibrate, serve
from mmcalib.workflows.calibration.session import Shared, session_of
from mmcalib.workflows.calibration.sources import Sources, find_model, read_corpus
from mmcalib.workflows.device import require_cuda, require_vllm
from mmcalib.workflows.gate.calibration import Calibration
from mmcalib.workflows.spec import Job, RunSoFar

Proofs = dict[str, Proven]


def run(job: Job, outcome: RunSoFar, progress: Progress) -> Calibration:
    """Do the job; `outcome` holds each step's result as soon as there is one.

    What fails within seconds ends the reading of the corpus, and changes no earlier result.
    """
    (resolved,) = _ready([job], progress)
    with Shared() as shared:
        return _run(job, resolved, outcome, progress, shared, {})


def run_each(
    jobs: Sequence[Job], outcomes: Sequence[RunSoFar], progress: Progress
) -> Iterator[Calibration | MmcalibError]:
    """Each job's calibration, or why there is none, in order and as they come. The corpus is that
    of the first: it is read once, each model measured once, each configuration proven once.

    Raises what concerns all of them.
    """
    proofs: Proofs = {}
    models = _ready(jobs, progress)
    with Shared() as shared:
        for job, resolved, outcome in zip(jobs, models, outcomes, strict=True):
            try:
                found = _run(job, resolved, outcome, progress, shared, proofs)
                if job.validate in ("startup", "replay"):
                    shared.stop_host()
                yield found
            except MmcalibError as error:
                if shared.corpus is None and isinstance(error, CorpusError | UsageError):
                    raise
                if not isinstance(error, VerdictError):
                    shared.end_host()
                yield error


def _ready(jobs: Sequence[Job], progress: Progress) -> list[ResolvedModel]:
    """The model of each, found before anything slow."""
    require_vllm()
    found: dict[str, ResolvedModel] = {}
    for job in jobs:
        require_cuda(job.device)
        if job.model not in found:
            found[job.model] = find_model(job, progress)
    return [found[job.model] for job in jobs]


def _run(
    job: Job,
    resolved: ResolvedModel,
    outcome: RunSoFar,
    progress: Progress,
    shared: Shared,
    proofs: Proofs,
) -> Calibration:
    with (
        allowing(job.allowed_media_domains),
        session_of(job, resolved, progress, shared) as session,
    ):
        job = session.job
        opening = shared.open(partial(open_to_calibrate, session, resolved))
        ahead: list[Future[Any]] = [opening, *([session.fitting] if session.fitting else [])]
        if shared.corpus is None:
            look = partial(_raise_from, ahead)
            shared.corpus = read_corpus(job, Interruptible(progress, look))
        if job.gpu is not None and session.fitting is not None:
            with progress.step(f"rehearsing whether the model fits on {job.gpu.name}"):
                session.fitting.result()
        with progress.step("opening the model in vLLM"):
            opened = opening.result()
        sources = Sources(resolved, shared.corpus)
        outcome.skipped.extend(sources.corpus.skipped)
        outcome.now(None)
        for note in resolved.notes[:1]:
            progress.note(note)
        served = serve(session, sources, opened)
        decided = derive(session, served)
        outcome.skipped.extend(decided.decision.unreadable)
        reviewed = review(session, decided)
        beside = begin_memory(session, reviewed)
        so_far = assemble(job, reviewed)
        outcome.now(so_far)
        tried = [decided.engine_config, serves(opened.device, job.gpu)]
        proof = json.dumps(tried, sort_keys=True)
        if proof not in proofs:
            config = engine_yaml(so_far, "vllm serve --config engine.yaml")
            proofs[proof] = prove_decision(session, reviewed, config)
        proven = proofs[proof]
        outcome.now(assemble(job, reviewed, proven))
        memory = predict_memory(session, reviewed, proven, beside)
        result = assemble(job, reviewed, proven, memory)
        outcome.now(result)
        return result


def _raise_from(futures: Sequence[Future[Any]]) -> None:
    """Raise what one of them has failed with, if any has."""
    for future in futures:
        if future.done():
            future.result()
