"""A child that is asked only what no earlier run has asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmcalib.engine.answers import Answers
from mmcalib.engine.crew import CrewHost
from mmcalib.engine.messages import Measure, Measured, Message, OpenModel, Reply, Request
from mmcalib.engine.question import digest


class RememberingHost(CrewHost):
    """Takes the answer of an earlier run where versions, model, machine and question are the same.
    Every other one is kept as soon as it has come.

    What only brings the child into a state waits until something is asked that is not known. With
    `asks_once`, nothing is asked twice in this process's life: files count as unchanged, and
    without `answers` its own are kept.
    """

    def __init__(
        self,
        answers: Answers | None,
        *,
        asks_once: bool = False,
        python: str = sys.executable,
        log: Path | None = None,
        on_said: Callable[[str], None] = lambda text: None,
        on_log: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(python=python, log=log, on_said=on_said, on_log=on_log)
        self._answers = answers
        self._own: dict[str, list[Message]] | None = {} if asks_once else None

    def _start(self) -> None:
        self._state = ""
        self._waiting: Request[Any] | None = None
        super()._start()

    def _converse(
        self, request: Request[Any], doing: str, silence_s: float | None = None
    ) -> Iterator[Message]:
        answers = self._answers if request.repeatable else None
        own = self._own if request.repeatable or isinstance(request, Measure) else None
        if answers is None and own is None:
            self._catch_up(doing)
            yield from super()._converse(request, doing, silence_s)
            return
        question = digest(request, "" if request.sets_state else self._state)
        stands = request.sets_state and self._waiting is None and question == self._state
        if request.sets_state:
            self._state, self._waiting = question, None
        known = own.get(question) if own is not None else None
        if known is None and answers is not None:
            known = answers.find(question)
        if known is not None:
            self._waiting = request if request.sets_state and not stands else self._waiting
            yield from known
            return
        self._catch_up(doing)
        heard: list[Message] = []
        for answer in super()._converse(request, doing, silence_s):
            heard.append(answer)
            if isinstance(answer, Reply) and all(map(_lasts, heard)):
                if answers is not None:
                    answers.keep(question, heard)
                elif own is not None:
                    own[question] = heard
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
