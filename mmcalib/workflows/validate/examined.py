"""Third stage: what the configuration does, to the user's items where there are some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mmcalib.checks import limits as traps
from mmcalib.checks.check import Check, Taken
from mmcalib.checks.file import SETTINGS_EFFECT, effect_checks
from mmcalib.checks.judge import option_traps
from mmcalib.derive.effects import settings
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.vllm_config import here
from mmcalib.errors import VllmMoved, VllmRefused
from mmcalib.progress import Progress
from mmcalib.workflows.decision.effects import effects
from mmcalib.workflows.decision.footprints import Footprints, witnesses
from mmcalib.workflows.memory.checks import known_in_bytes
from mmcalib.workflows.read import ReadCorpus
from mmcalib.workflows.validate.findings import findings
from mmcalib.workflows.validate.items import measured, probed
from mmcalib.workflows.validate.memory import (
    ServedMemory,
    figures,
    with_own_items,
    with_worst_steps,
)
from mmcalib.workflows.validate.opened import OpenedConfig
from mmcalib.workflows.validate.reading import ReadableConfig
from mmcalib.workflows.validate.spec import ValidateSession
from mmcalib.workflows.validate.subject import Subject


@dataclass(frozen=True, slots=True)
class Examined:
    """`subject` has the costs of the user's `corpus`; `taken` is the memory that options take
    beside the profile.
    """

    subject: Subject
    corpus: ReadCorpus | None
    memory: ServedMemory | None
    taken: tuple[Taken, ...]
    checks: tuple[Check, ...]


def examine(
    session: ValidateSession,
    config: ReadableConfig,
    opened: OpenedConfig,
    corpus: ReadCorpus | None,
) -> Examined:
    subject, memory, asks = opened.subject, opened.memory, opened.asks
    if memory is not None:
        memory = with_worst_steps(memory, subject)
    checks = list(findings(subject, asks, memory, corpus, str(session.job.config)))
    traps = list(option_traps(config.engine_args, config.served, figures(subject, memory)))
    checks += [trap.check for trap in traps]
    if corpus is None:
        checks += probed(subject, session.host, session.progress)
    else:
        subject, found = measured(corpus, subject, asks, session.progress)
        checks += found
        if memory is not None:
            memory = with_own_items(memory, subject)
            known = known_in_bytes(memory.config)
            checks = [check for check in checks if check.id not in known]
    checks += setting_checks(subject, session.host, session.progress)
    taken = tuple(trap.taken for trap in traps if trap.taken)
    return Examined(subject, corpus, memory, taken, tuple(checks))


def setting_checks(subject: Subject, host: EngineHost, progress: Progress) -> Iterator[Check]:
    """Each setting switched off once; flat processor options tried on every served modality."""
    served = [m for m, count in subject.counts.items() if count.value]
    defaults, shown = subject.opened.serve_defaults, witnesses(served, (subject.table,))
    asked = Footprints(host, subject.resolved.path, defaults, shown)
    args = here(subject.engine_args, subject.opened.device)
    with progress.step("switching each setting off once", len(settings(args))) as task:
        yield from _bleeding(args, served, asked)
        try:
            found, _ = effects(args, asked, task)
        except (VllmMoved, VllmRefused) as error:
            yield Check(SETTINGS_EFFECT, "skip", f"not asked: {error.message}")
            return
    yield from effect_checks(found)


def _bleeding(
    args: dict[str, object], served: list[Modality], asked: Footprints
) -> Iterator[Check]:
    for name in traps.flat(args):
        with_ = asked.items(args, asked.witnesses)
        less = asked.items(traps.without(args, name), asked.witnesses)
        moved = traps.changed(with_, less)
        remedies = {}
        for modality in moved:
            tried = traps.scoped(args, name, modality)
            alone = traps.changed(asked.items(tried, asked.witnesses), less)
            if alone == {modality: moved[modality]}:
                remedies[modality] = tried
        check = traps.bleeding(name, moved, remedies)
        if check is not None:
            yield check
