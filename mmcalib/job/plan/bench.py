"""Where fixes are tried: one imaginary GPU, the configuration as it is, and every answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mmcalib.derive.fixes import Fix, Outcome, changed
from mmcalib.derive.goal import Goal
from mmcalib.engine.messages import Rehearsed
from mmcalib.errors import EngineError


class Rehearses(Protocol):
    """`mmcalib.job.memory.rehearse.Rehearsals`, or what stands for it."""

    def rehearse(self, engine_args: Mapping[str, Any]) -> Rehearsed: ...


@dataclass(slots=True)
class Bench:
    """`count` is how many configurations were rehearsed; each is rehearsed once."""

    rehearsals: Rehearses
    engine_args: Mapping[str, Any]
    goal: Goal
    count: int = 0
    _answers: dict[str, Rehearsed | str] = field(default_factory=dict)

    def changes(self, fixes: tuple[Fix, ...]) -> dict[str, Any]:
        """What the fixes make of the engine arguments that they change."""
        return changed(self.engine_args, fixes)

    def rehearse(self, fixes: tuple[Fix, ...]) -> Rehearsed:
        """Raises EngineError where vLLM refuses, or the configuration cannot be rehearsed."""
        self.count += 1
        changes = self.changes(fixes)
        found = self.rehearsals.rehearse({**self.engine_args, **changes})
        self._answers[_key(changes)] = found
        return found

    def outcome(self, fixes: tuple[Fix, ...]) -> Outcome:
        answer = self.found(fixes)
        if answer is None:
            try:
                answer = self.rehearse(fixes)
            except EngineError as error:
                answer = self._answers[_key(self.changes(fixes))] = error.message
        if isinstance(answer, str):
            return Outcome(False, 0, answer)
        length = answer.budget.max_model_len if answer.budget else 0
        return Outcome(self.goal.reached(answer), self.goal.lacking_bytes(answer, length))

    def found(self, fixes: tuple[Fix, ...]) -> Rehearsed | str | None:
        """The answer for these fixes, vLLM's refusal, or None where nobody has asked."""
        return self._answers.get(_key(self.changes(fixes)))


def _key(changes: Mapping[str, Any]) -> str:
    return json.dumps(changes, sort_keys=True)
