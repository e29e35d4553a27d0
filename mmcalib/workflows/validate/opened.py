"""Second stage: the configuration opened in vLLM, which budgets for it or refuses it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from mmcalib.checks.check import Check
from mmcalib.errors import EngineDied, VllmMissing
from mmcalib.models import ResolvedModel, resolve
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.memory.prediction import MemoryPrediction
from mmcalib.workflows.memory.rehearse import Rehearsals, on_gpu
from mmcalib.workflows.spec import cache_dir
from mmcalib.workflows.validate.memory import ServedMemory, begun
from mmcalib.workflows.validate.reading import ReadableConfig
from mmcalib.workflows.validate.spec import ValidateSession
from mmcalib.workflows.validate.subject import Subject, asking, budgeted, opened_as


@dataclass(frozen=True, slots=True)
class OpenedConfig:
    """`asks` asks vLLM for the budget of other arguments."""

    resolved: ResolvedModel
    subject: Subject
    asks: BudgetSource
    memory: ServedMemory | None
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class RefusedConfig:
    """vLLM's refusal, which ends the validation."""

    resolved: ResolvedModel
    checks: tuple[Check, ...]


def find_model(session: ValidateSession, config: ReadableConfig) -> ResolvedModel:
    """Raises ModelError where it is not there."""
    with session.progress.step("finding the model"):
        resolved = resolve(config.model, cache_dir=cache_dir())
    for note in resolved.notes[:1]:
        session.progress.note(note)
    return resolved


@contextlib.contextmanager
def memory_of(
    session: ValidateSession, config: ReadableConfig, resolved: ResolvedModel
) -> Iterator[ServedMemory | None]:
    """The configuration rehearsed on the job's GPU, None where none is named."""
    gpu, progress = session.job.gpu, session.progress
    if gpu is None:
        yield None
        return
    base, fatal = {"model": resolved.path}, (EngineDied, VllmMissing)
    with (
        Rehearsals(gpu, on_said=progress.note, on_log=progress.log) as rehearsals,
        MemoryPrediction(gpu, rehearsals, base, fatal) as prediction,
    ):
        yield begun(prediction, config.engine_args, progress)


def open_config(
    session: ValidateSession,
    config: ReadableConfig,
    resolved: ResolvedModel,
    memory: ServedMemory | None,
) -> OpenedConfig | RefusedConfig:
    """Raises ModelError for a model that takes no media."""
    opened = opened_as(session.host, resolved, config.engine_args, session.progress)
    if isinstance(opened, Check):
        return RefusedConfig(resolved, (opened,))
    opened = on_gpu(opened, memory.config if memory else None)
    asks = asking(session.host, opened, resolved)
    subject, checks = budgeted(asks, resolved, config.engine_args, session.progress)
    if subject is None:
        return RefusedConfig(resolved, tuple(checks))
    return OpenedConfig(resolved, subject, asks, memory, tuple(checks))
