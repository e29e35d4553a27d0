"""Configurations rehearsed on one imaginary GPU, beside the job and each once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from mmcalib.closing import Closing
from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.errors import MmcalibError
from mmcalib.gpus.gpu import Gpu

EngineArgs = Mapping[str, Any]
Steps = tuple[EncoderStep, ...]
T = TypeVar("T")


class Rehearses(Protocol):
    """`mmcalib.workflows.memory.rehearse.Rehearsals`, or what stands for it."""

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> Rehearsed: ...


@dataclass(slots=True)
class MemoryPrediction(Closing):
    """Asks `rehearsals` from a thread of its own; arguments go on top of `base`. `failure` is why
    the first that was `tried` could not be rehearsed; failures of type `fatal` are raised instead.
    """

    gpu: Gpu
    rehearsals: Rehearses
    base: EngineArgs = field(default_factory=dict)
    fatal: tuple[type[MmcalibError], ...] = ()
    failure: MmcalibError | None = field(init=False, default=None)
    _thread: ThreadPoolExecutor = field(init=False)
    _begun: dict[str, Future[Rehearsed]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rehearsal")

    @property
    def count(self) -> int:
        """How many configurations were rehearsed."""
        return len(self._begun)

    def begin(self, engine_args: EngineArgs, steps: Steps = ()) -> Future[Rehearsed]:
        """Rehearse the configuration, then these steps of the encoder; returns at once."""
        key = key_of(engine_args, steps)
        if key not in self._begun:
            full = {**self.base, **engine_args}
            self._begun[key] = self._thread.submit(self.rehearsals.rehearse, full, steps)
        return self._begun[key]

    def after(self, work: Callable[[], T]) -> Future[T]:
        """Have it done once all is done that was begun; returns at once."""
        return self._thread.submit(work)

    def rehearse(self, engine_args: EngineArgs, steps: Steps = ()) -> Rehearsed:
        """Raises EngineError where vLLM refuses, or the configuration cannot be rehearsed."""
        return self.begin(engine_args, steps).result()

    def known(self, engine_args: EngineArgs) -> Rehearsed | MmcalibError | None:
        """The answer, why there is none, or None where nobody has asked."""
        if key_of(engine_args) not in self._begun:
            return None
        try:
            return self.rehearse(engine_args)
        except MmcalibError as error:
            return error

    def tried(self, engine_args: EngineArgs, steps: Steps = ()) -> Rehearsed | None:
        """None where it ends early."""
        try:
            return self.rehearse(engine_args, steps)
        except self.fatal:
            raise
        except MmcalibError as error:
            self.failure = self.failure or error
            return None

    def every(
        self,
        every: Sequence[EngineArgs],
        first: Steps = (),
        on_each: Callable[[], None] = lambda: None,
    ) -> list[Rehearsed | None]:
        """These, the first with these steps of the encoder; None where one ends early."""
        wanted = [(args, () if number else first) for number, args in enumerate(every)]
        for args, steps in wanted:
            self.begin(args, steps)
        found = []
        for args, steps in wanted:
            found.append(self.tried(args, steps))
            on_each()
        return found

    def close(self) -> None:
        # Nothing more is asked; what the thread still waits for ends with its process.
        self._thread.shutdown(wait=False, cancel_futures=True)


def key_of(engine_args: EngineArgs, steps: Steps = ()) -> str:
    """The same for the same arguments, in whatever order."""
    return json.dumps([engine_args, repr(steps)], sort_keys=True)
