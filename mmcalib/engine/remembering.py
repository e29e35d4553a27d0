"""A child that is asked only what no earlier run has asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmcalib.engine.answers import Answers
from mmcalib.engine.crew import CrewHost
from mmcalib.engine.messages import Measured, Message, OpenModel, Reply, Request
from mmcalib.engine.question import digest


class RememberingHost(CrewHost):
    """Takes the answer of an earlier run where versions, model, machine and question are the same.
    Every other one is kept as soon as it has come.

    What only brings the child into a state waits until something is asked that is not known.
    """

    def __init__(
        self,
        answers: Answers | None,
        *,
        python: str = sys.executable,
        log: Path | None = None,
        on_said: Callable[[str], None] = lambda text: None,
        on_log: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(python=python, log=log, on_said=on_said, on_log=on_log)
        self._answers = answers
        self._state = ""
        self._waiting: Request[Any] | None = None

    def _converse(
        self, request: Request[Any], doing: str, silence_s: float | None = None
    ) -> Iterator[Message]:
        if self._answers is None or not request.repeatable:
            self._catch_up(doing)
            yield from super()._converse(request, doing, silence_s)
            return
        question = digest(request, "" if request.sets_state else self._state)
        if request.sets_state:
            self._state, self._waiting = question, None
        known = self._answers.find(question)
        if known is not None:
            self._waiting = request if request.sets_state else self._waiting
            yield from known
            return
        self._catch_up(doing)
        heard: list[Message] = []
        for answer in super()._converse(request, doing, silence_s):
            heard.append(answer)
            if isinstance(answer, Reply) and all(map(_lasts, heard)):
                self._answers.keep(question, heard)
            yield answer

    def _catch_up(self, doing: str) -> None:
        """The child hears what it missed."""
        if self._waiting is None:
            return
        missed, self._waiting = self._waiting, None
        if isinstance(missed, OpenModel):
            missed = replace(missed, tries=False)
        for _ in super()._converse(missed, doing):
            pass


def _lasts(answer: Message) -> bool:
    """What this machine has no memory for, it may have tomorrow."""
    return not isinstance(answer, Measured) or answer.refused_by != "host_memory"
