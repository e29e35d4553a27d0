"""Requests served on the imaginary GPU, and the books of its memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from mmcalib.child.rehearsal.forwards import Forwards
from mmcalib.child.rehearsal.install import Stage
from mmcalib.child.rehearsal.rehearse import live_tensors
from mmcalib.child.rehearsal.startup import emptied, named_modules
from mmcalib.child.traffic import Say, StepBooks, serve
from mmcalib.domain.traffic import Traffic, TrafficStep
from mmcalib.engine.messages import ServeTraffic
from mmcalib.releases import compilation
from mmcalib.releases.engine_core import SteppedCore

# Tensors that are named of a step.
_NAMED = 12


def serve_imagined(stage: Stage, request: ServeTraffic, say: Say) -> Traffic:
    """The requests on the stage's GPU, which is empty again afterwards."""
    with emptied(stage):
        return serve(request, _Ledgered(stage), say)


class _Ledgered(StepBooks):
    """The ledger of the stage's GPU.

    A step that only goes on with answers takes no more than the last of as many sequences or more:
    it is left out unless there are more of them than ever before.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage, self._ledger = stage, stage.ledger
        self._forwards = Forwards(stage.device, stage.ledger)
        self._named = ExitStack()
        self._base_bytes = 0
        self._decoded = 0
        self._decode_bytes = 0
        self._peak_bytes = 0

    def prepare(self, config: Any) -> None:
        compilation.forgo(config)
        compilation.forgo_warmup(config)

    def profile(self, worker: Any, method: Callable[[], Any]) -> Any:
        with self._ledger.phase("profile") as phase:
            found = method()
        self.reserved_bytes = phase.peak_bytes - phase.start_bytes
        self._base_bytes = phase.start_bytes
        return found

    def began(self, core: SteppedCore) -> None:
        self._base_bytes += self._ledger.booked_bytes(core.kv_tensors)
        model = core.worker.model_runner.model
        self._named.enter_context(named_modules(model, self._ledger))
        self._forwards.watch(model)

    def run(self, decided: Any, work: Callable[[], None]) -> None:
        before = self._held()
        running = _going_on(decided)
        self.largest, self._forwards.largest = (), ()
        tokens = decided.num_scheduled_tokens.values()
        self._forwards.sharing = len(tokens), sum(one == 1 for one in tokens)
        if running and running <= self._decoded:
            self._peak_bytes = before + self._decode_bytes
            return
        with self._ledger.phase("step") as phase:
            work()
        self._peak_bytes = phase.peak_bytes - self._base_bytes
        found = (*phase.largest, *self._forwards.largest)
        self.largest = live_tensors(sorted(found, key=lambda one: -one.nbytes)[:_NAMED])
        if running:
            self._decoded, self._decode_bytes = running, self._peak_bytes - before

    def entered(self, step: TrafficStep) -> TrafficStep:
        return dataclasses.replace(step, peak_bytes=self._peak_bytes, held_bytes=self._held())

    def end(self, core: SteppedCore) -> None:
        # A worker that is shut down asks for the driver; the stage takes down what it set up.
        self._named.close()

    def _held(self) -> int:
        return self._stage.machine.allocator.allocated_bytes - self._base_bytes


def _going_on(decided: Any) -> int:
    """How many sequences a step goes on with, by a token each; 0 where it does anything else."""
    if decided.scheduled_new_reqs or decided.scheduled_encoder_inputs:
        return 0
    # What the encoder made for an encoder-decoder model is freed in such steps, too.
    if decided.free_encoder_mm_hashes or decided.scheduled_cached_reqs.resumed_req_ids:
        return 0
    running = len(decided.num_scheduled_tokens)
    return running if running == decided.total_num_scheduled_tokens else 0
