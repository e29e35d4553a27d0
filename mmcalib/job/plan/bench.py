"""Where fixes are tried: one imaginary GPU, the configuration as it is, and every answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mmcalib.derive.fixes import Fix, Outcome, changed
from mmcalib.derive.goal import Goal
from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.errors import EngineError


class Rehearses(Protocol):
    """`mmcalib.job.memory.rehearse.Rehearsals`, or what stands for it."""

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> Rehearsed: ...


@dataclass(slots=True)
class Bench:
    """`count` is how many configurations were rehearsed, each once; `failure` is why the first of
    `every` that could not be was not.
    """

    rehearsals: Rehearses
    engine_args: Mapping[str, Any]
    goal: Goal
    count: int = 0
    failure: EngineError | None = None
    _answers: dict[str, Rehearsed | EngineError] = field(default_factory=dict)

    def changes(self, fixes: tuple[Fix, ...]) -> dict[str, Any]:
        """What the fixes make of the engine arguments that they change."""
        return changed(self.engine_args, fixes)

    def args(self, fixes: tuple[Fix, ...]) -> dict[str, Any]:
        """All engine arguments under the fixes."""
        return {**self.engine_args, **self.changes(fixes)}

    def rehearse(self, fixes: tuple[Fix, ...]) -> Rehearsed:
        """Raises EngineError where vLLM refuses, or the configuration cannot be rehearsed."""
        return self._ask(self.args(fixes))

    def every(
        self, every: Sequence[Mapping[str, Any]], first: tuple[EncoderStep, ...] = ()
    ) -> list[Rehearsed | None]:
        """Answers to whole engine arguments, the first with these steps of the encoder; None where
        one ends early.
        """
        return [self._tried(args, () if n else first) for n, args in enumerate(every)]

    def outcome(self, fixes: tuple[Fix, ...]) -> Outcome:
        answer = self.found(fixes)
        if answer is None:
            try:
                answer = self.rehearse(fixes)
            except EngineError as error:
                answer = error
        if isinstance(answer, EngineError):
            return Outcome(False, 0, answer.message)
        length = answer.budget.max_model_len if answer.budget else 0
        return Outcome(self.goal.reached(answer), self.goal.lacking_bytes(answer, length))

    def found(self, fixes: tuple[Fix, ...]) -> Rehearsed | EngineError | None:
        """The answer for these fixes, vLLM's refusal, or None where nobody has asked."""
        return self._answers.get(_key(self.args(fixes)))

    def _tried(self, args: Mapping[str, Any], steps: tuple[EncoderStep, ...]) -> Rehearsed | None:
        try:
            return self._ask(args, steps)
        except EngineError as error:
            self.failure = self.failure or error
            return None

    def _ask(self, args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()) -> Rehearsed:
        """The same is rehearsed once."""
        key = _key(args, steps)
        answer = self._answers.get(key)
        if answer is None:
            self.count += 1
            try:
                answer = self.rehearsals.rehearse(args, steps)
            except EngineError as error:
                answer = error
            self._answers[key] = answer
        if isinstance(answer, EngineError):
            raise answer
        return answer


def _key(args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()) -> str:
    return json.dumps([args, repr(steps)], sort_keys=True)
