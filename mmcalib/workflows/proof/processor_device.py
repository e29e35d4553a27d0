"""The sampled items through the processor on another device, beside the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmcalib.checks.catalogue.engine import PROCESSOR_ON_GPU
from mmcalib.checks.check import Check
from mmcalib.derive.processed import differences
from mmcalib.domain.processed import Processed
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import CompareDevices, DevicesCompared, File, OpenModel
from mmcalib.errors import EngineError
from mmcalib.progress import Progress
from mmcalib.result import processor_device as c
from mmcalib.workflows.decision.measure import Sample
from mmcalib.workflows.device import DeviceComparison
from mmcalib.workflows.media_files import Files, files

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """One item as both made it."""

    path: str
    cpu: Processed
    device: Processed
    largest_difference: float | None

    def differences(self, device: str) -> list[str]:
        """What is not the same of it."""
        return differences(self.cpu, self.device, device)


@dataclass(slots=True)
class DevicePairs:
    """What was compared; `refused` are items that only the device refuses, each with its reason.
    `ended` says why it broke off.
    """

    comparison: DeviceComparison
    pairs: dict[Modality, list[Pair]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    ended: str = ""


def compare(
    host: EngineHost,
    comparison: DeviceComparison,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = files,
) -> DevicePairs:
    """Each sampled item on both, in the host's opened model. Items that vLLM refuses on the CPU too
    are left out; an end of the engine ends the comparison, and not the job.
    """
    found = DevicePairs(comparison)
    wanted = [(s.modality, path) for s, path in sample if s.modality in comparison.modalities]
    # The engine's own measuring has said of the others why they are none.
    chosen = [
        (modality, path, file)
        for (modality, path), file in zip(wanted, files(wanted), strict=True)
        if isinstance(file, str)
    ]
    with progress.step(f"processing on {comparison.device} too", len(chosen)) as task:
        try:
            for modality, path, file in chosen:
                warm = modality not in found.pairs
                request = CompareDevices(setting, File(modality, file), comparison.device, warm)
                answer = host.ask(request, f"processing on {comparison.device}")
                _keep(found, modality, path, answer)
                task.advance()
        except EngineError as error:
            found.ended = error.message
    return found


def _keep(found: DevicePairs, modality: Modality, path: str, answer: DevicesCompared) -> None:
    if answer.cpu is None:
        return
    if answer.device is None:
        found.refused[path] = answer.refusal
    else:
        pair = Pair(path, answer.cpu, answer.device, answer.largest_difference)
        found.pairs.setdefault(modality, []).append(pair)


def compare_apart(
    path: str,
    max_model_len: int | None,
    comparison: DeviceComparison,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = files,
) -> DevicePairs:
    """The same in a process of its own, which takes its memory of the GPU with it: the engine that
    starts later must find none of it taken.
    """
    if not comparison.modalities:
        return DevicePairs(comparison)
    with EngineHost(on_said=progress.note, on_log=progress.log) as host:
        try:
            again = OpenModel(path, max_model_len, tries=False)
            host.ask(again, "opening the model again")
        except EngineError as error:
            return DevicePairs(comparison, ended=error.message)
        return compare(host, comparison, setting, sample, progress, files)


def compared_check(found: DevicePairs) -> Check:
    """Whether all came out the same. Where nobody asked for the device, a difference warns: what is
    served does not depend on it.
    """
    device, comparison = found.comparison.device, found.comparison
    pairs = [pair for several in found.pairs.values() for pair in several]
    wrong = [(pair.path, said[0]) for pair in pairs if (said := pair.differences(device))]
    wrong += [(path, f"refused on {device} alone: {why}") for path, why in found.refused.items()]
    left_out = [f"{m} items only on the CPU: {why}" for m, why in comparison.unfit.items()]
    worst = "fail" if comparison.asked else "warn"
    if wrong:
        several = len(pairs) + len(found.refused)
        path, why = wrong[0]
        said = [f"{path}: {why}; {len(wrong)} of {several} sampled items differ", *left_out]
        remedy = (
            f"{comparison.option}=cpu where the processor is served" if comparison.option else ""
        )
        return Check(PROCESSOR_ON_GPU, worst, "; ".join(said), remedy)  # type: ignore[arg-type]
    if found.ended:
        return Check(PROCESSOR_ON_GPU, worst, f"broke off: {found.ended}", "--device cpu")  # type: ignore[arg-type]
    if not pairs:
        detail = "; ".join(left_out) or f"vLLM takes none of the sampled items, on {device} or CPU"
        return Check(PROCESSOR_ON_GPU, "skip", detail, "--device cpu")
    what = "tokens, embeds, types and shapes of tensors"
    same = f"{len(pairs)} sampled items come out the same on {device} as on the CPU: {what}"
    return Check(PROCESSOR_ON_GPU, "pass", "; ".join([same, *left_out]))


def processor_device(found: DevicePairs | None) -> c.ProcessorDevice | None:
    """What `calibration.json` keeps of it; None where nothing was compared."""
    if found is None or not found.pairs:
        return None
    comparison = found.comparison
    return c.ProcessorDevice(
        device=comparison.device,
        cpu_threads=comparison.threads,
        option=comparison.option,
        modalities={str(m): figures(pairs, comparison.device) for m, pairs in found.pairs.items()},
        not_compared={str(modality): why for modality, why in comparison.unfit.items()},
    )


def figures(pairs: Sequence[Pair], device: str) -> c.ProcessedItems:
    """Of at least one pair."""
    peaks = [pair.device.peak_bytes for pair in pairs if pair.device.peak_bytes is not None]
    off = [p.largest_difference for p in pairs if p.largest_difference is not None]
    return c.ProcessedItems(
        items=len(pairs),
        differing=sum(1 for pair in pairs if pair.differences(device)),
        cpu_items_per_s=_rate([pair.cpu for pair in pairs]),
        device_items_per_s=_rate([pair.device for pair in pairs]),
        device_mean_bytes=round(sum(peaks) / len(peaks)) if peaks else None,
        device_peak_bytes=max(peaks, default=None),
        largest_difference=max(off, default=None),
    )


def _rate(several: Sequence[Processed]) -> float:
    return round(len(several) / sum(one.seconds for one in several), _DIGITS)
