"""Everything that a validation found, as one document."""

from __future__ import annotations

from collections.abc import Sequence

from mmcalib.checks.check import Check, verdict
from mmcalib.models import ResolvedModel
from mmcalib.results.part import CheckResult
from mmcalib.results.validation import TakenMemory, ValidatedBudgets, ValidatedMemory, Validation
from mmcalib.version import __version__
from mmcalib.workflows.corpus_figures import corpus_figures
from mmcalib.workflows.memory.figures import encoder_budget, memory
from mmcalib.workflows.proof.figures import measured_memory, startup_figures
from mmcalib.workflows.proof.startup import Started
from mmcalib.workflows.validate.examined import Examined
from mmcalib.workflows.validate.opened import RefusedConfig
from mmcalib.workflows.validate.reading import ReadableConfig, UnreadableConfig
from mmcalib.workflows.validate.spec import ValidateJob
from mmcalib.workflows.validate.subject import Subject
from mmcalib.workflows.validate.tried import TriedConfig


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
