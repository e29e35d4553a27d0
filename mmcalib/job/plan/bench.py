"""Where fixes are tried: one imaginary GPU, the configuration as it is, and every answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmcalib.derive.fix import Fix, Outcome, changed
from mmcalib.derive.goal import Goal
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.errors import EngineError, MmcalibError
from mmcalib.job.memory.prediction import MemoryPrediction


@dataclass(frozen=True, slots=True)
class Bench:
    """The configuration as it is, and its goal."""

    prediction: MemoryPrediction
    engine_args: Mapping[str, Any]
    goal: Goal

    def changes(self, fixes: tuple[Fix, ...]) -> dict[str, Any]:
        """What the fixes make of the engine arguments that they change."""
        return changed(self.engine_args, fixes)

    def args(self, fixes: tuple[Fix, ...]) -> dict[str, Any]:
        """All engine arguments under the fixes."""
        return {**self.engine_args, **self.changes(fixes)}

    def rehearse(self, fixes: tuple[Fix, ...]) -> Rehearsed:
        """Raises EngineError where vLLM refuses, or the configuration cannot be rehearsed."""
        return self.prediction.rehearse(self.args(fixes))

    def outcome(self, fixes: tuple[Fix, ...]) -> Outcome:
        try:
            answer = self.rehearse(fixes)
        except EngineError as error:
            return Outcome(False, 0, error.message)
        length = answer.budget.max_model_len if answer.budget else 0
        return Outcome(self.goal.reached(answer), self.goal.lacking_bytes(answer, length))

    def found(self, fixes: tuple[Fix, ...]) -> Rehearsed | MmcalibError | None:
        """The answer for these fixes, vLLM's refusal, or None where nobody has asked."""
        return self.prediction.known(self.args(fixes))
