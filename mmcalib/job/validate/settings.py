"""Whether each setting does something, and only what it is meant for (R8)."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.checks.catalogue import kwargs as traps
from mmcalib.checks.catalogue.effects import SETTINGS_EFFECT, effect_checks
from mmcalib.checks.check import Check
from mmcalib.derive.effects import settings
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.errors import EngineDied, EngineError
from mmcalib.job.decision.effects import effects
from mmcalib.job.decision.footprints import Footprints, witnesses
from mmcalib.job.validate.subject import Subject, here
from mmcalib.progress import Progress


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
        except EngineDied:
            raise
        except EngineError as error:
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
