"""Puts a process on an imaginary GPU, once and for good, before vLLM is imported."""

from __future__ import annotations

import gc
import os

import torch

from mmcalib.child.rehearsal.device.allocator_settings import given_settings
from mmcalib.child.rehearsal.device.imaginary import ImaginaryGpu
from mmcalib.child.rehearsal.device.ledger import Ledger
from mmcalib.child.rehearsal.device.machine import Machine
from mmcalib.child.rehearsal.device.workspace import Workspaces
from mmcalib.child.rehearsal.patches.flashinfer_products import Products
from mmcalib.errors import UsageError
from mmcalib.models.gpus import Gpu
from mmcalib.releases import targets


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
    from mmcalib.child.rehearsal.patches import (
        attention,
        compilation,
        cuda,
        deep_gemm,
        experts,
        flashinfer,
        humming,
        kernels,
        loading,
        media,
        operations,
        parameters,
        platform,
        processes,
        triton,
    )

    platform.disown_build()
    stage = Stage(gpu)
    cuda.install(stage.machine)
    triton.install(stage.machine)
    flashinfer.install(stage.products, lambda: stage.ledger.module)
    deep_gemm.install(stage.machine.capability, lambda: stage.ledger.module)
    operations.install(lambda: stage.ledger.module)
    platform.install(stage.machine)
    attention.install(stage.machine)
    compilation.install(stage.ledger)
    kernels.install(stage.ledger, stage.machine.capability)
    experts.install()
    humming.install(lambda: stage.ledger.module)
    if targets.WINDOWS_ARE_AN_OPERATION:
        attention.install_windows()
    if targets.PARAMETERS_ARE_FAKED:
        parameters.install()
    loading.install()
    processes.install()
    media.install()
    gc.collect()
    gc.freeze()
    return stage
