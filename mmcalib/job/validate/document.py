"""Everything that a validation found, as one document."""

from __future__ import annotations

from collections.abc import Mapping

from mmcalib.checks.check import verdict
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.corpus_figures import corpus_figures
from mmcalib.job.memory.figures import encoder_budget, memory
from mmcalib.job.proof.figures import measured_memory, startup_figures
from mmcalib.job.validate.found import Asked, Found
from mmcalib.job.validate.subject import Subject
from mmcalib.result.check_result import CheckResult
from mmcalib.result.validation import TakenMemory, ValidatedBudgets, ValidatedMemory, Validation
from mmcalib.version import __version__


def document(found: Found, asked: Asked) -> Validation:
    subject, resolved, gpu = found.subject, found.resolved, asked.gpu
    versions: Mapping[str, str] = subject.opened.versions if subject else {}
    return Validation(
        checks=list(map(CheckResult.of, found.checks)),
        verdict=verdict(found.checks),
        config=str(asked.config),
        flags=list(asked.flags),
        model=resolved.id if resolved else found.model,
        source=resolved.source if resolved else None,
        architecture=subject.opened.architecture if subject else "",
        engine_config=found.engine_args,
        budget=_budgets(subject) if subject else None,
        memory=_memory(found, gpu) if subject else None,
        startup=startup_figures(found.proof.started, found.proof.burst, found.proof.replayed),
        items=found.items,
        corpus=corpus_figures(subject.table, found.prompts, found.skipped)
        if subject and subject.table.costs
        else None,
        gpu=gpu.name if gpu else "",
        tool={"mmcalib": __version__, **versions},
        doubts=list(resolved.notes) if resolved else [],
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


def _memory(found: Found, gpu: Gpu | None) -> ValidatedMemory:
    predicted = found.memory.predicted if found.memory else None
    started = found.proof.started
    rehearsed = [
        memory(one, gpu) if one is not None and gpu is not None else None
        for one in ((predicted.default, predicted.calibrated) if predicted else (None, None))
    ]
    return ValidatedMemory(
        default=rehearsed[0],
        config=rehearsed[1],
        measured=measured_memory(started, own=True) if started else None,
        options=[TakenMemory(what=one.what, bytes=one.nbytes) for one in found.taken],
    )
