"""The configuration's memory on the GPU that will serve it, rehearsed, beside the default's."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmcalib.census.accesses import Accesses
from mmcalib.checks.catalogue.limits import LIMIT
from mmcalib.checks.catalogue.reserve import Room
from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import line
from mmcalib.checks.trap import Figures
from mmcalib.derive.demand import Shortfall, WorstStep
from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.domain.shapes import Modality
from mmcalib.errors import EngineDied, EngineError
from mmcalib.geometry import read_config, vocab_size
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.memory.checks import (
    known_in_bytes,
    memory_checks,
    predicted_shortfall,
    reserved_check,
)
from mmcalib.job.memory.cured import cured
from mmcalib.job.memory.predict import Predicted
from mmcalib.job.memory.rehearse import Rehearsals
from mmcalib.job.memory.retained import views_check
from mmcalib.job.memory.tokens_alone import Unrehearsed, not_rehearsed
from mmcalib.job.memory.worst_steps import configurations, encoder_steps
from mmcalib.job.proof.startup import Started
from mmcalib.job.validate.subject import Subject
from mmcalib.progress import Progress
from mmcalib.wording import gib


@dataclass(slots=True)
class Foresight:
    """One imaginary GPU; what cannot be rehearsed on it is None, `failure` the first such."""

    gpu: Gpu
    model_path: str
    progress: Progress
    config: Rehearsed | None = None
    default: Rehearsed | None = None
    steps: dict[Modality, Rehearsed] = field(default_factory=dict)
    failure: EngineError | None = None
    _rehearsals: Rehearsals = field(init=False)

    def __post_init__(self) -> None:
        self._rehearsals = Rehearsals(
            self.gpu, on_said=self.progress.note, on_log=self.progress.log
        )

    def begin(self, engine_args: Mapping[str, Any]) -> None:
        """Rehearse the configuration, and vLLM's defaults at the same context."""
        kept = {k: v for k, v in engine_args.items() if k == "max_model_len"}
        with self.progress.step(f"rehearsing on {self.gpu.name}"):
            self.config = self.rehearse(engine_args)
            self.default = self.rehearse(kept)

    def worst(self, subject: Subject) -> None:
        """Rehearse the worst step of each modality."""
        with self.progress.step(f"rehearsing the worst steps on {self.gpu.name}"):
            for modality, args in configurations(subject):
                found = self.rehearse(args)
                if found is not None:
                    self.steps[modality] = found

    def own_items(self, subject: Subject) -> set[CheckId]:
        """Rehearse steps of the corpus' own items where they take more than vLLM's dummies; the
        checks whose bytes are known with it.
        """
        steps = encoder_steps(subject)
        if self.config is None or not steps:
            return set()
        with self.progress.step(f"rehearsing steps of the corpus' items on {self.gpu.name}"):
            found = self.rehearse(subject.engine_args, steps)
        if found is not None:
            self.config = found
        return known_in_bytes(self.config)

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> Rehearsed | None:
        try:
            return self._rehearsals.rehearse({**engine_args, "model": self.model_path}, steps)
        except EngineDied:
            raise
        except EngineError as error:
            self.failure = self.failure or error
            return None

    def gain(self, subject: Subject) -> str:
        """What the KV cache gains if the modality that nobody limits and that sets the budget is
        not served.
        """
        worst, args = subject.budget.profiled_modality, subject.engine_args
        written = args.get(LIMIT) or {}
        if worst is None or worst in written or self.config is None:
            return ""
        less = self.rehearse({**args, LIMIT: {**written, worst: 0}})
        if less is None:
            return ""
        now, then = gib(self.config.kv_cache_bytes), gib(less.kv_cache_bytes)
        return f" and a KV cache on {self.gpu.name} of {then} instead of {now}"

    def shortfall(self, subject: Subject) -> Shortfall | None:
        """The costliest step beside what is reserved; None where it is not known."""
        return predicted_shortfall(self._predicted(), subject)

    def unrehearsed(self, config: str) -> Unrehearsed:
        """Why R4 is not known in bytes, of the file `config`."""
        command = shlex.join(["mmcalib", "rehearse", "--config", config])
        return not_rehearsed(self._predicted(), command)

    def _predicted(self) -> Predicted:
        return Predicted(
            self.gpu, self.default, self.config, steps=self.steps, failure=self.failure
        )

    def room(self, subject: Subject) -> Room | None:
        """The same on the whole GPU."""
        found = self.shortfall(subject)
        if self.config is None or found is None:
            return None
        return Room(
            self.config.total_bytes,
            self.config.requested_bytes,
            found.worst.nbytes,
            found.reserved_bytes,
        )

    def checks(
        self, subject: Subject, started: Started | None, config: str, accesses: Accesses
    ) -> Iterator[Check]:
        """R4 in bytes where it could be rehearsed, what cached items keep beyond it, and whether
        the engine starts on that GPU.
        """
        predicted = self._predicted()
        reserved = reserved_check(predicted, subject, allow_under_reserve=False)
        if reserved is not None:
            fails = reserved.status == "fail"
            yield replace(reserved, remedy=self._remedy(subject)) if fails else reserved
        kept = views_check(predicted, subject, accesses)
        if kept is not None:
            yield kept
        for check in memory_checks(predicted, started, subject.resolved.path):
            fails = check.status == "fail"
            plan = shlex.join(["mmcalib", "plan", "--config", config, "--gpu", self.gpu.name])
            yield replace(check, remedy=plan) if fails else check

    def _remedy(self, subject: Subject) -> str:
        """Settings that were rehearsed, where any does; else room beside what is reserved."""
        found = self.shortfall(subject)
        # What fails in tokens has cures of its own, that shrink the item.
        if found is None or not subject.adequacy.passes:
            return self._leave_room(subject)
        with self.progress.step(f"rehearsing what would do on {self.gpu.name}"):
            cures = list(cured(found, subject, self._every))
        lines = [
            " and ".join(line(name, value) for name, value in cure.engine.values.items())
            for cure in cures
        ]
        return " or ".join(lines) or self._leave_room(subject)

    def _every(
        self, every: Sequence[Mapping[str, Any]], first: tuple[EncoderStep, ...]
    ) -> list[Rehearsed | None]:
        return [self.rehearse(args, () if n else first) for n, args in enumerate(every)]

    def _leave_room(self, subject: Subject) -> str:
        """What helps where the profile reserves its own modality in full, and another one's step
        takes more.
        """
        args = subject.engine_args
        found, room = self.shortfall(subject), self.room(subject)
        if found is None or room is None:
            return ""
        remedies = []
        worst = found.worst.modality if isinstance(found.worst, WorstStep) else None
        if worst is not None and worst != subject.budget.profiled_modality:
            others = {m: count for m, count in (args.get(LIMIT) or {}).items() if m != worst}
            remedies.append(f"{line(LIMIT, {**others, worst: 0})} where no {worst} is served")
        lower = line("gpu_memory_utilization", room.utilization)
        remedies.append(f"{lower}, which leaves the room without reserving it")
        return " or ".join(remedies)

    def close(self) -> None:
        self._rehearsals.close()


def figures(subject: Subject, foresight: Foresight | None) -> Figures:
    """What traps of options are computed from."""
    known = Figures(
        budget=subject.budget,
        counts={m: count.value for m, count in subject.counts.items()},
        vocab_size=vocab_size(read_config(Path(subject.resolved.path))),
    )
    config = foresight.config if foresight else None
    if foresight is None or config is None:
        return known
    steps = {m: _encoder_peak(step) for m, step in foresight.steps.items()}
    return replace(
        known,
        encoder_peak_bytes=_encoder_peak(config),
        encoder_tokens=config.encoder_tokens,
        step_bytes={m: peak for m, peak in steps.items() if peak is not None},
        encoder_cache_bytes=config.encoder_cache_bytes,
        activation_peak_bytes=config.activation_peak_bytes,
        runner=config.runner,
    )


def _encoder_peak(found: Rehearsed) -> int | None:
    return next((phase.peak_bytes for phase in found.phases if phase.name == "encoder"), None)
