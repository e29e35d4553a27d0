"""The memory of steps, where somebody keeps its books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmcalib.domain.rehearsed import LiveTensor
from mmcalib.domain.traffic import TrafficStep
from mmcalib.releases.engine_core import SteppedCore


class StepBooks:
    """Of a real engine: every step is executed, and nobody knows what it took.

    `largest` are the tensors at the last step's peak; `reserved_bytes` is that of
    `Traffic`.
    """

    largest: tuple[LiveTensor, ...] = ()
    reserved_bytes: int | None = None

    def prepare(self, config: Any) -> None:
        """Change the engine config, before anything is made of it."""

    def profile(self, worker: Any, method: Callable[[], Any]) -> Any:
        """Run the worker's startup profile."""
        return method()

    def began(self, core: SteppedCore) -> None:
        """The engine is up."""

    def run(self, decided: Any, work: Callable[[], None]) -> None:
        """Have a step executed, or leave it out."""
        work()

    def entered(self, step: TrafficStep) -> TrafficStep:
        """The step that was run last, with its memory."""
        return step

    def end(self, core: SteppedCore) -> None:
        """All is served, or something failed."""
        core.end()
