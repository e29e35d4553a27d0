"""The configuration's memory on the GPU that will serve it, rehearsed, beside the default's."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from mmcalib.census.shapes import Modality
from mmcalib.derive.checks import Check
from mmcalib.derive.traps.limits import LIMIT
from mmcalib.derive.traps.reserve import Room
from mmcalib.engine.messages import Rehearsed
from mmcalib.errors import EngineDied, EngineError
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.memory.checks import memory_checks, reserved_check
from mmcalib.job.memory.predict import Predicted
from mmcalib.job.memory.rehearse import Rehearsals
from mmcalib.job.memory.worst_steps import configurations
from mmcalib.job.proof.startup import Started
from mmcalib.job.validate.subject import Subject
from mmcalib.progress import Progress
from mmcalib.report.words import gib


@dataclass(slots=True)
class Foresight:
    """One imaginary GPU; what cannot be rehearsed on it is None, and `problem` the first reason."""

    gpu: Gpu
    model_path: str
    progress: Progress
    config: Rehearsed | None = None
    default: Rehearsed | None = None
    steps: dict[Modality, Rehearsed] = field(default_factory=dict)
    problem: str = ""
    _rehearsals: Rehearsals = field(init=False)

    def __post_init__(self) -> None:
        self._rehearsals = Rehearsals(self.gpu, on_said=self.progress.note)

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

    def rehearse(self, engine_args: Mapping[str, Any]) -> Rehearsed | None:
        try:
            return self._rehearsals.rehearse({**engine_args, "model": self.model_path})
        except EngineDied:
            raise
        except EngineError as error:
            self.problem = self.problem or error.message
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

    def room(self) -> Room | None:
        """What the costliest step takes beside what is reserved; None where it is not known."""
        peaks = [p.peak_bytes for s in self.steps.values() for p in s.phases if p.name == "encoder"]
        if self.config is None or not peaks:
            return None
        return Room(
            self.config.total_bytes,
            self.config.requested_bytes,
            max(peaks),
            self.config.activation_peak_bytes,
        )

    def checks(self, subject: Subject, started: Started | None, config: str) -> Iterator[Check]:
        """R4 in bytes where it could be rehearsed, and whether the engine starts on that GPU."""
        predicted = Predicted(
            self.gpu, self.default, self.config, steps=self.steps, problem=self.problem
        )
        reserved = reserved_check(predicted, subject, allow_under_reserve=False)
        if reserved is not None:
            yield reserved
        for check in memory_checks(predicted, started, subject.resolved.path):
            fails = check.status == "fail"
            plan = shlex.join(["mmcalib", "plan", "--config", config, "--gpu", self.gpu.name])
            yield replace(check, remedy=plan) if fails else check

    def __enter__(self) -> Foresight:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rehearsals.close()
