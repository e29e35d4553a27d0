"""The whole job: read, serve, decide, review, prove, predict; each stage gives a frozen value."""

from __future__ import annotations

from mmcalib.progress import Progress
from mmcalib.result.engine_yaml import engine_yaml
from mmcalib.workflows.calibration.assemble import assemble
from mmcalib.workflows.calibration.decided import derive
from mmcalib.workflows.calibration.memory_found import begin_memory, predict_memory
from mmcalib.workflows.calibration.proven import beside_default, prove_decision
from mmcalib.workflows.calibration.reviewed import review
from mmcalib.workflows.calibration.served import serve
from mmcalib.workflows.calibration.session import session_of
from mmcalib.workflows.calibration.sources import read_sources
from mmcalib.workflows.device import require_cuda
from mmcalib.workflows.gate.calibration import Calibration
from mmcalib.workflows.spec import Job, RunSoFar


def run(job: Job, outcome: RunSoFar, progress: Progress) -> Calibration:
    """Do the job; `outcome` holds each step's result as soon as there is one."""
    require_cuda(job.device)
    sources = read_sources(job, progress)
    outcome.skipped.extend(sources.corpus.skipped)
    outcome.now(None)
    for note in sources.resolved.notes[:1]:
        progress.note(note)
    with session_of(job, sources.resolved.path, progress) as session:
        job = session.job
        served = serve(session, sources)
        decided = derive(session, served)
        outcome.skipped.extend(decided.decision.unreadable)
        reviewed = review(session, decided)
        beside = begin_memory(session, reviewed)
        so_far = assemble(job, reviewed)
        outcome.now(so_far)
        config = engine_yaml(so_far, "vllm serve --config engine.yaml")
        proven = prove_decision(session, reviewed, config)
        outcome.now(assemble(job, reviewed, proven))
        proven = beside_default(session, reviewed, proven)
        memory = predict_memory(session, reviewed, proven, beside)
        result = assemble(job, reviewed, proven, memory)
        outcome.now(result)
        return result
