"""Install the imaginary GPU, bring the worker up."""

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
from mmcalib.child.rehearsal.device import ImaginaryGpu
from mmcalib.child.rehearsal.ledger import Ledger, LedgerPhase, Machine, Workspaces
from mmcalib.child.rehearsal.patches import cuda
from mmcalib.child.rehearsal.patches.flashinfer import Products
from mmcalib.child.tensors import storages
from mmcalib.errors import UsageError
from mmcalib.models.gpus import Gpu
from mmcalib.releases import models, platform, targets
from mmcalib.releases import runner as memory
from mmcalib.releases.constants import CONTEXT_BYTES
from mmcalib.releases.runner import gpu_worker, watched_phases
from mmcalib.text import MIB


class Stage:
    """One process's imaginary GPU: machine, ledger and dispatch mode belong together."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.machine = Machine(gpu, given_settings(os.environ))
        self.ledger = Ledger(self.machine)
        self.workspaces = _workspaces(self.machine)
        self.device = ImaginaryGpu(self.ledger, on_matmul=self.workspaces.use)
        self.products = Products()
        self._settled = False

    def settle(self) -> None:
        """Collect what a rehearsal left. After the first, what stays is there for good: vLLM
        collects garbage several times in a startup, and most of it would be looking at modules.
        """
        gc.collect()
        if not self._settled:
            gc.freeze()
            self._settled = True

    def clear(self) -> None:
        """Empty the GPU for the next rehearsal; what is still alive no longer counts."""
        self.machine.clear()
        self.ledger.clear()
        self.workspaces = _workspaces(self.machine)
        self.device.clear(on_matmul=self.workspaces.use)
        self.products.clear()


def _workspaces(machine: Machine) -> Workspaces:
    major, minor = torch.__version__.split(".")[:2]
    return Workspaces(
        machine,
        machine.capability,
        (int(major), int(minor)),
        config=os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        lt_size_config=os.environ.get("CUBLASLT_WORKSPACE_SIZE"),
    )


def install(gpu: Gpu) -> Stage:
    """Install every stand-in, in the order in which vLLM would look for the real thing.

    Raises UsageError for a GPU without CUDA.
    """
    if gpu.capability is None:
        raise UsageError(
            f"{gpu.name} has no CUDA, and only vLLM's CUDA worker can be rehearsed",
            hint="name an NVIDIA GPU",
        )
    # The real device, if there is one, is left alone.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from mmcalib.child.rehearsal.patches import attention, cuda, flashinfer, kernels, loading
    from mmcalib.child.rehearsal.patches import cuda as compilation
    from mmcalib.child.rehearsal.patches import cuda as processes
    from mmcalib.child.rehearsal.patches import cuda as triton
    from mmcalib.child.rehearsal.patches import flashinfer as deep_gemm
    from mmcalib.child.rehearsal.patches import flashinfer as humming
    from mmcalib.child.rehearsal.patches import kernels as experts
    from mmcalib.child.rehearsal.patches import kernels as operations
    from mmcalib.child.rehearsal.patches import loading as media
    from mmcalib.child.rehearsal.patches import loading as parameters
    from mmcalib.child.rehearsal.patches import loading as platform

    platform.disown_build()
    stage = Stage(gpu)
    cuda.install_cuda(stage.machine)
    triton.install_triton(stage.machine)
    flashinfer.install_flashinfer(stage.products, lambda: stage.ledger.module)
    deep_gemm.install_deep_gemm(stage.machine.capability, lambda: stage.ledger.module)
    operations.install_operations(lambda: stage.ledger.module)
    platform.install_platform(stage.machine)
    attention.install_attention(stage.machine)
    compilation.install_compilation(stage.ledger)
    kernels.install_kernels(stage.ledger, stage.machine.capability)
    experts.install_experts()
    humming.install_humming(lambda: stage.ledger.module)
    if targets.WINDOWS_ARE_AN_OPERATION:
        attention.install_windows()
    if targets.PARAMETERS_ARE_FAKED:
        parameters.install_parameters()
    loading.install_loading()
    processes.install_process_groups()
    media.install_dummy_media()
    gc.collect()
    gc.freeze()
    return stage


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
        platform.fit_block_size(config)
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


# The median of eleven public startup logs on one GPU, 0.02 to 0.26 GiB: kernels that are loaded at
# first use (benchmarks/memory_allowances.toml has them all).
ONE_RANK_BYTES: Final = 72 * MIB
# Two ranks show 0.33 GiB (vllm#14452): NCCL's buffers too, where vLLM looks before NCCL starts.
NCCL_BYTES: Final = 230 * MIB


def non_torch_bytes(ranks: int, *, counts_nccl: bool) -> int:
    """Bytes per GPU of a group of so many ranks; `counts_nccl` if vLLM looks before NCCL starts."""
    return ONE_RANK_BYTES + (NCCL_BYTES if ranks > 1 and counts_nccl else 0)
