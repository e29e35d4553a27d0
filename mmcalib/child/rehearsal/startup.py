"""Install the imaginary GPU, and start vLLM's worker on it."""

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

from mmcalib.child.rehearsal.allocator import settings_from_environment
from mmcalib.child.rehearsal.device import ImaginaryGpu
from mmcalib.child.rehearsal.ledger import Ledger, LedgerPhase, Workspaces
from mmcalib.child.rehearsal.patches import cuda, flashinfer, kernels, loading
from mmcalib.child.tensors import storage_sizes
from mmcalib.models.gpus import Gpu
from mmcalib.releases import models, platform
from mmcalib.releases.runner import gpu_worker, wrap_phases
from mmcalib.text import MIB


class ImaginaryMachine:
    """The imaginary GPU of one process: its ledger and dispatch mode."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.beside_bytes = gpu, 0
        self.ledger = Ledger(gpu, settings_from_environment(os.environ))
        self.device = ImaginaryGpu(self.ledger)
        self.products = flashinfer.Products()
        self.is_frozen = False
        self.clear()

    def clear(self) -> None:
        """Empty the GPU for the next rehearsal; live tensors no longer count."""
        self.ledger.clear()
        self.ledger.gpu = self.gpu
        major, minor = map(int, torch.__version__.split(".")[:2])
        workspaces = Workspaces(
            self.ledger.allocator, self.gpu.capability, (major, minor), os.environ
        )
        loads_more = not self.gpu.unified and platform.uses_more_non_torch(self.gpu.capability)
        # cuDNN's part, from the first convolution: the most of 8 to 222 MiB on an H100.
        cudnn_bytes = 222 * MIB if loads_more else 0

        def count_libraries(name: str) -> None:
            nonlocal cudnn_bytes
            workspaces.use(name)
            if name == "convolution":
                self.ledger.other_bytes += cudnn_bytes
                cudnn_bytes = 0

        self.device.clear(on_aten=count_libraries)
        self.products.workspaces.clear()


# Replacements in the order in which vLLM looks for the real parts.
_PATCHES: Final[tuple[Callable[[ImaginaryMachine], None], ...]] = (
    *(cuda.install_cuda, cuda.install_triton, flashinfer.install_flashinfer),
    *(flashinfer.install_deep_gemm, kernels.install_operations, loading.install_platform),
    *(kernels.install_attention, cuda.install_compilation, kernels.install_kernels),
    *(kernels.install_experts, flashinfer.install_humming, kernels.install_windows),
    *(loading.install_parameters, loading.install_loading, cuda.install_process_groups),
    loading.install_dummy_media,
)


def install(gpu: Gpu) -> ImaginaryMachine:
    """Replace all parts of a CUDA machine."""
    # Do not touch a real device.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    loading.hide_cpu_build()
    machine = ImaginaryMachine(gpu)
    for install_part in _PATCHES:
        install_part(machine)
    gc.collect()
    gc.freeze()
    gc.enable()
    return machine


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """A worker after vLLM's memory profile, with its engine config and the GPU's ledger; in bytes.

    `available_bytes` is the result of vLLM's `determine_available_memory`, `non_torch_bytes` the
    allowance for non-torch memory. `phases` (encoder, language model, sampler) are those that ran,
    and do not overlap. `kept_bytes` were allocated after the encoder ran and stay, such as the
    workspace of experts. `stack_bytes` is what local memory has grown by.
    """

    config: Any
    ledger: Ledger
    worker: Any
    weights_bytes: int
    profile: LedgerPhase
    phases: tuple[LedgerPhase, ...]
    available_bytes: int
    non_torch_bytes: int
    kept_bytes: int
    stack_bytes: int


def non_torch_allowance(gpu: Gpu) -> int:
    """Return the allowance for non-torch memory after vLLM's first memory snapshot.

    It covers kernels that load at first use, and on unified memory the system's use. Medians of the
    figures in benchmarks/memory_allowances.toml.
    """
    if gpu.unified:
        return 2990 * MIB
    return (256 if platform.uses_more_non_torch(gpu.capability) else 72) * MIB


@contextmanager
def start_worker(machine: ImaginaryMachine, config: Any) -> Iterator[StartedWorker]:
    """Load and profile a worker with this engine config; empty the GPU afterwards."""
    ledger = machine.ledger
    with use_gpu(machine), models.use_config(config):
        if config.parallel_config.tensor_parallel_size > 1:
            ledger.gpu = machine.gpu.with_nccl()
        worker = gpu_worker(config)
        worker.init_device()
        worker.load_model()
        platform.fit_block_size(config)
        # Allocated between vLLM's first and last memory snapshot.
        ledger.other_bytes += non_torch_allowance(machine.gpu) + machine.beside_bytes
        runner = worker.model_runner
        with (
            ledger.phase("profile") as profile,
            track_modules(runner.model, ledger),
            _watch_phases(ledger, runner, profile) as phases,
        ):
            available = worker.determine_available_memory()
        parts = [profile, *(phase for phase in phases if phase.name == "encoder")]
        kept = ledger.new_bytes_since(parts[-1])
        weights = int(runner.model_memory_usage)
        yield StartedWorker(
            *(config, ledger, worker, weights, profile, tuple(phases), available),
            *(ledger.other_bytes, kept, ledger.local_bytes),
        )


@contextmanager
def use_gpu(machine: ImaginaryMachine) -> Iterator[None]:
    """While open, vLLM runs on the imaginary GPU, which is empty before and after."""
    machine.clear()
    try:
        with torch.inference_mode(), machine.device:
            yield
    finally:
        platform.end_groups()
        models.clear_model_tables()
        gc.collect()
        # Once, because vLLM collects often.
        if not machine.is_frozen:
            gc.freeze()
            machine.is_frozen = True


def record_outputs(phase: LedgerPhase, outputs: Iterable[torch.Tensor]) -> None:
    """Record an encoder's outputs: a tensor per item, often views of one storage that stays."""
    items = list(outputs)
    sizes = storage_sizes(items)
    phase.items = len(items)
    phase.embeddings = sum(len(item) for item in items)
    phase.output_bytes = sum(sizes.values())
    phase.storages = len(sizes)


@contextmanager
def _watch_phases(ledger: Ledger, runner: Any, profile: LedgerPhase) -> Iterator[list[LedgerPhase]]:
    """While open, record the peaks of a profile's phases above the profile's start."""
    phases: list[LedgerPhase] = []

    def wrap(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def record_phase(*args: Any, **kwargs: Any) -> Any:
            with ledger.phase(name, since=profile) as phase:
                phases.append(phase)
                result = method(*args, **kwargs)
            if name == "encoder":
                record_outputs(phase, result)
            return result

        return record_phase

    with wrap_phases(runner, runner.model, wrap):
        yield phases


@contextmanager
def track_modules(model: nn.Module, ledger: Ledger) -> Iterator[None]:
    """While open, tell the ledger which of the model's modules is running."""
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
