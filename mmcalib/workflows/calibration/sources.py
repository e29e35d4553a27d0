"""First stage: the model's files, and the corpus by its headers."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.models import ResolvedModel, resolve
from mmcalib.progress import Progress
from mmcalib.workflows.counted_before import counted_before
from mmcalib.workflows.read import ReadCorpus, read
from mmcalib.workflows.spec import Job


@dataclass(frozen=True, slots=True)
class Sources:
    """What a job names, found and read."""

    resolved: ResolvedModel
    corpus: ReadCorpus


def read_sources(job: Job, progress: Progress) -> Sources:
    """Raises ModelError, CorpusError and UsageError where something named is not there."""
    with progress.step("finding the model"):
        resolved = resolve(job.model, cache_dir=job.cache)
    if job.census:
        with progress.step("reading the census"):
            return Sources(resolved, counted_before(job.census, allow_url=job.allow_url))
    corpus = read(
        job.data,
        job.requests,
        allowed_root=job.allowed_root,
        allow_url=job.allow_url,
        cache=job.cache,
        progress=progress,
        how=job.probe,
    )
    return Sources(resolved, corpus)
