"""Install the imaginary GPU, bring vLLM's worker up on it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules import module as hooks

from mmcalib.child.rehearsal.allocator import given_settings
from mmcalib.child.rehearsal.device import ImaginaryGpu, Operation
from mmcalib.child.rehearsal.ledger import Ledger, LedgerPhase, Machine, Workspaces
from mmcalib.child.rehearsal.patches import cuda, flashinfer, kernels, loading
from mmcalib.child.tensors import storages
from mmcalib.errors import UsageError
from mmcalib.models.gpus import Gpu
from mmcalib.releases import models, platform
from mmcalib.releases.runner import gpu_worker, watched_phases
from mmcalib.text import MIB


class Stage:
    """One process's imaginary GPU: machine, ledger and dispatch mode belong together."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.machine = Machine(gpu, given_settings(os.environ))
        self.ledger = Ledger(self.machine)
        self.device = ImaginaryGpu(self.ledger)
        self.products = flashinfer.Products()
        self._settled = False
        self.clear()

    def settle(self) -> None:
        """Collect what a rehearsal left; after the first, freeze the rest: vLLM collects often."""
        gc.collect()
        if not self._settled:
            gc.freeze()
            self._settled = True

    def clear(self) -> None:
        """Empty the GPU for the next rehearsal; what is still alive no longer counts."""
        self.machine.clear()
        self.ledger.clear()
        major, minor = torch.__version__.split(".")[:2]
        workspaces = Workspaces(
            self.machine.allocator,
            self.machine.capability,
            (int(major), int(minor)),
            config=os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            lt_size_config=os.environ.get("CUBLASLT_WORKSPACE_SIZE"),
        )
        convolved = False

        def used(operation: Operation) -> None:
            nonlocal convolved
            workspaces.use(operation)
            if operation == torch.ops.aten.convolution.default and not convolved:
                convolved = True
                self.machine.other_bytes += cudnn_bytes(self.gpu)

        self.device.clear(on_matmul=used)
        self.products.clear()


# In the order in which vLLM would look for the real thing.
_STAND_INS: Final[tuple[Callable[[Stage], None], ...]] = (
    cuda.install_cuda,
    cuda.install_triton,
    flashinfer.install_flashinfer,
    flashinfer.install_deep_gemm,
    kernels.install_operations,
    loading.install_platform,
    kernels.install_attention,
    cuda.install_compilation,
    kernels.install_kernels,
    kernels.install_experts,
    flashinfer.install_humming,
    kernels.install_windows,
    loading.install_parameters,
    loading.install_loading,
    cuda.install_process_groups,
    loading.install_dummy_media,
)


def install(gpu: Gpu) -> Stage:
    """Install every stand-in. Raises UsageError for a GPU without CUDA."""
    if gpu.capability is None:
        raise UsageError(
            f"{gpu.name} has no CUDA, and only vLLM's CUDA worker can be rehearsed",
            hint="name an NVIDIA GPU",
        )
    # The real device, if there is one, is left alone.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    loading.disown_build()
    stage = Stage(gpu)
    for install_part in _STAND_INS:
        install_part(stage)
    gc.collect()
    gc.freeze()
    return stage


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """A worker that knows how much memory is left, its engine config and the GPU's books; bytes.

    `available_bytes` is what vLLM's own `determine_available_memory` returned, `outside_bytes` the
    allowance for what is taken outside torch. Phases overlap in
    nothing: encoder, language model, sampler, as far as they ran. `kept_bytes` live on that were
    made after the encoder's, such as the workspace of experts.
    """

    config: Any
    ledger: Ledger
    worker: Any
    weights_bytes: int
    profile: LedgerPhase
    phases: tuple[LedgerPhase, ...]
    available_bytes: int
    outside_bytes: int
    kept_bytes: int


def outside_bytes(gpu: Gpu) -> int:
    """What a start takes outside torch after vLLM's first look: kernels that load at first use, on
    unified memory the system's too. Medians of the figures in benchmarks/memory_allowances.toml.
    """
    return (2990 if gpu.unified else 256 if _loads_more(gpu) else 72) * MIB


def cudnn_bytes(gpu: Gpu) -> int:
    """More of it with the first convolution: the most of three starts on an H100, 8 to 222 MiB."""
    return (222 if _loads_more(gpu) else 0) * MIB


def _loads_more(gpu: Gpu) -> bool:
    return not gpu.unified and platform.loads_more(gpu.capability or (0, 0))


@contextmanager
def start_worker(stage: Stage, config: Any) -> Iterator[StartedWorker]:
    """Load and profile a worker under this engine config; the GPU is empty again afterwards."""
    ledger = stage.ledger
    with use_gpu(stage), models.built_under(config):
        worker = gpu_worker(config)
        worker.init_device()
        worker.load_model()
        platform.fit_block_size(config)
        # Taken between vLLM's first look at the memory and its last.
        stage.machine.other_bytes += outside_bytes(stage.gpu)
        runner = worker.model_runner
        with (
            ledger.phase("profile") as profile,
            named_modules(runner.model, ledger),
            _watch_phases(ledger, runner, profile) as phases,
        ):
            available = worker.determine_available_memory()
        parts = [profile, *(phase for phase in phases if phase.name == "encoder")]
        kept = ledger.made_after(parts[-1])
        weights = int(runner.model_memory_usage)
        yield StartedWorker(
            *(config, ledger, worker, weights, profile, tuple(phases), available),
            *(stage.machine.other_bytes, kept),
        )


@contextmanager
def use_gpu(stage: Stage) -> Iterator[None]:
    """While open vLLM runs on the stage's GPU, which is empty before and after."""
    stage.clear()
    try:
        with torch.inference_mode(), stage.device:
            yield
    finally:
        cuda.end()
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
def _watch_phases(ledger: Ledger, runner: Any, profile: LedgerPhase) -> Iterator[list[LedgerPhase]]:
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
