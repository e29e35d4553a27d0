"""vLLM's own worker brought up on the imaginary GPU, as far as the size of its KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from mmcalib.child.rehearsal.device.ledger import Ledger, LedgerPhase
from mmcalib.child.rehearsal.install import Stage
from mmcalib.child.rehearsal.patches import processes
from mmcalib.child.storages import storages
from mmcalib.releases import memory, models, platforms
from mmcalib.releases.constants import CONTEXT_BYTES
from mmcalib.releases.runner import gpu_worker, watched_phases


@dataclass(frozen=True, slots=True)
class Brought:
    """A worker that knows how much memory is left; bytes.

    `available_bytes` is what vLLM's own `determine_available_memory` returned. Phases overlap in
    nothing: encoder, language model, sampler, as far as they ran. `kept_bytes` live on that were
    made after the encoder's, such as the workspace of experts.
    """

    worker: Any
    weights_bytes: int
    profile: LedgerPhase
    phases: tuple[LedgerPhase, ...]
    available_bytes: int
    kept_bytes: int


@contextmanager
def brought_up(stage: Stage, config: Any, non_torch_bytes: int) -> Iterator[Brought]:
    """Load and profile under this engine config; while open the worker is there to be asked.

    `non_torch_bytes` are taken outside torch between vLLM's first look at the memory and its last.
    Afterwards the GPU is empty again.
    """
    ledger = stage.ledger
    with emptied(stage), models.built_under(config):
        if memory.counts_context():
            stage.machine.other_bytes += CONTEXT_BYTES
        worker = gpu_worker(config)
        worker.init_device()
        worker.load_model()
        platforms.fit_block_size(config)
        stage.machine.other_bytes += non_torch_bytes
        runner = worker.model_runner
        with (
            ledger.phase("profile") as profile,
            named_modules(runner.model, ledger),
            _watched(ledger, runner, profile) as phases,
        ):
            available = worker.determine_available_memory()
        parts = [profile, *(phase for phase in phases if phase.name == "encoder")]
        kept = ledger.made_after(parts[-1])
        weights = int(runner.model_memory_usage)
        yield Brought(worker, weights, profile, tuple(phases), available, kept)


@contextmanager
def emptied(stage: Stage) -> Iterator[None]:
    """While open vLLM runs on the stage's GPU, which is empty before and after."""
    stage.clear()
    try:
        with torch.inference_mode(), stage.device:
            yield
    finally:
        processes.end()
        models.forget_models()
        stage.settle()


def note_outputs(phase: LedgerPhase, outputs: Iterable[torch.Tensor]) -> None:
    """What an encoder made: a tensor per item, often views of one storage, which is what stays."""
    made = list(outputs)
    held = storages(made)
    phase.items = len(made)
    phase.embeddings = sum(len(item) for item in made)
    phase.output_bytes = sum(held.values())
    phase.storages = len(held)


@contextmanager
def _watched(ledger: Ledger, runner: Any, profile: LedgerPhase) -> Iterator[list[LedgerPhase]]:
    """While open, the phases of a profile note their peaks above the profile's start."""
    found: list[LedgerPhase] = []

    def watching(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            with ledger.phase(name, since=profile) as phase:
                found.append(phase)
                result = method(*args, **kwargs)
            if name == "encoder":
                note_outputs(phase, result)
            return result

        return watched

    with watched_phases(runner, runner.model, watching):
        yield found


@contextmanager
def named_modules(model: nn.Module, ledger: Ledger) -> Iterator[None]:
    """While open, the ledger knows in which of the model's modules an operation runs."""
    names = {id(module): name for name, module in model.named_modules()}
    stack: list[str] = []

    def enter(module: nn.Module, args: Any) -> None:
        stack.append(ledger.module)
        ledger.module = names.get(id(module), ledger.module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        ledger.module = stack.pop() if stack else ""

    before = hooks.register_module_forward_pre_hook(enter)
    after = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
        ledger.module = ""
