"""First stage: the model's files, and the corpus by its headers."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.models import ResolvedModel, resolve
from mmcalib.progress import Progress
from mmcalib.workflows.read import ReadCorpus, read
from mmcalib.workflows.spec import Job


@dataclass(frozen=True, slots=True)
class Sources:
    """What a job names, found and read."""

    resolved: ResolvedModel
    corpus: ReadCorpus


def find_model(job: Job, progress: Progress) -> ResolvedModel:
    """Raises ModelError where it is nowhere."""
    with progress.step("finding the model"):
        return resolve(job.model, cache_dir=job.cache)


def read_corpus(job: Job, progress: Progress) -> ReadCorpus:
    """Raises CorpusError and UsageError where something named is not there."""
    return read(
        job.data,
        job.requests,
        allowed_root=job.allowed_root,
        cache=job.cache,
        progress=progress,
        how=job.probe,
    )
