"""Which GPU the options of the command line name."""

from __future__ import annotations

from mmcalib.errors import UsageError
from mmcalib.gpus.catalogue import ANY
from mmcalib.gpus.gpu import Gpu, described


def gpu_named(gpu: str | None, gpu_memory: str | None, capability: str | None) -> Gpu | str | None:
    """A name, a described GPU, or None where nothing is said. Raises UsageError."""
    if gpu_memory is not None and gpu is not None:
        raise UsageError("--gpu and --gpu-memory are one or the other", hint="--gpu NAME")
    if (gpu_memory is None) != (capability is None):
        raise UsageError(
            "--gpu-memory and --capability go together",
            hint=f"{ANY}, or --gpu NAME",
        )
    return described(gpu_memory, capability) if gpu_memory and capability else gpu


def gpu_that_serves(named: Gpu | str | None) -> Gpu | None:
    """The one named or described, or the one that is here; None where there is none."""
    from mmcalib.gpus import present
    from mmcalib.memory.rehearse import AUTO, gpu_of

    if isinstance(named, Gpu):
        return named
    if named is not None:
        return gpu_of(named)
    return gpu_of(AUTO) if present.has_gpu() else None
