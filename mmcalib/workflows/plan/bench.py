"""Where fixes are tried: one imaginary GPU, the configuration as it is, and every answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.fixes import NOTHING_KEPT, Fix, Goal, Keep, Outcome, changed
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.errors import EngineError, MmcalibError
from mmcalib.workflows.memory.prediction import MemoryPrediction


@dataclass(frozen=True, slots=True)
class Bench:
    """The configuration as it is, its goal, and what must stay.

    `required` fixes are part of every combination. `oom` is what the log's server lacked when it
    ran out of memory.
    """

    prediction: MemoryPrediction
    engine_args: Mapping[str, Any]
    goal: Goal
    kept: Keep = NOTHING_KEPT
    required: tuple[Fix, ...] = ()
    oom: ObservedOom | None = None

    def changes(self, fixes: tuple[Fix, ...]) -> dict[str, Any]:
        """The engine arguments that the fixes change, each with its whole new value."""
        values = changed(self.engine_args, (*self.required, *fixes))
        names = [name for fix in (*fixes, *self.required) for name in fix.changes]
        return {name: values[name] for name in dict.fromkeys(names)}

    def values(self, fix: Fix, fixes: tuple[Fix, ...]) -> dict[str, Any]:
        """The arguments that one of the fixes changes, each with its whole value under all."""
        values = self.changes(fixes)
        return {name: values[name] for name in fix.changes}

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
        """What was rehearsed for these fixes, vLLM's refusal, or None where nobody has asked."""
        return self.prediction.known(self.args(fixes))
