"""The processor on another device, in words."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib import wording
from mmcalib.result.processor_device import ProcessedItems, ProcessorDevice
from mmcalib.sizes import MIB

HEAD = (
    *("", "items", "differ", "items/s, CPU", "items/s, device", "device memory per item, mean"),
    *("at most", "values differ by"),
)


def line(found: ProcessorDevice) -> str:
    """All of it on one line."""
    each = (
        f"{modality} {one.device_items_per_s:,.1f} items/s "
        f"(CPU {one.cpu_items_per_s:,.1f}){_at_most(one)}"
        for modality, one in found.modalities.items()
    )
    served_by = f"vLLM: encode-only, {_option(found)}"
    return f"processor on {found.device}: {', '.join(each)} [{label(found)}]; {served_by}"


def label(found: ProcessorDevice) -> str:
    return f"{found.label} ({found.device})"


def served(found: ProcessorDevice) -> str:
    """Who may use it: vLLM refuses the accelerator beside a language model
    (`validate_mm_processor_device`, vllm/config/multimodal.py, 0.32).
    """
    return (
        f"vLLM serves this only on an encode-only instance, by {_option(found)}; one that runs the "
        "language model too processes on the CPU, and engine.yaml leaves the device out"
    )


def rows(found: ProcessorDevice) -> Iterator[tuple[str, ...]]:
    """One per modality, under `HEAD`."""
    for modality, one in found.modalities.items():
        off = one.largest_difference
        yield (
            modality,
            wording.number(one.items),
            wording.number(one.differing),
            f"{one.cpu_items_per_s:,.1f}",
            f"{one.device_items_per_s:,.1f}",
            _mib(one.device_mean_bytes),
            _mib(one.device_peak_bytes),
            "—" if off is None else f"{off:.3g}",
        )


def _option(found: ProcessorDevice) -> str:
    return f"{found.option or '--mm-processor-device'}={found.device}"


def _at_most(one: ProcessedItems) -> str:
    peak = one.device_peak_bytes
    return "" if peak is None else f", at most {_mib(peak)} each"


def _mib(value: int | None) -> str:
    return "—" if value is None else f"{value / MIB:,.1f} MiB"
