"""Third stage: what the configuration does, to the user's items where there are some."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.checks.check import Check
from mmcalib.checks.judge import option_traps
from mmcalib.checks.trap import Taken
from mmcalib.job.memory.checks import known_in_bytes
from mmcalib.job.read import ReadCorpus
from mmcalib.job.validate.findings import findings
from mmcalib.job.validate.items import measured, probed
from mmcalib.job.validate.memory import ServedMemory, figures, with_own_items, with_worst_steps
from mmcalib.job.validate.opened import OpenedConfig
from mmcalib.job.validate.reading import ReadableConfig
from mmcalib.job.validate.settings import setting_checks
from mmcalib.job.validate.spec import ValidateSession
from mmcalib.job.validate.subject import Subject


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
    checks = list(findings(subject, asks, memory, has_data=corpus is not None))
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
