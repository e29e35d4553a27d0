"""The processor on another device, as `calibration.json` keeps it."""

from __future__ import annotations

from typing import Literal

from mmcalib.result.part import DocumentPart


class ProcessedItems(DocumentPart):
    """Sampled items, one at a time, without loading them. `differing` in tokens, embeds, types or
    shapes of tensors; their values by `largest_difference` at most, in the tensors' own unit.

    Bytes are the most that one item holds on the device above what was held before it.
    """

    items: int
    differing: int
    cpu_items_per_s: float
    device_items_per_s: float
    device_mean_bytes: int | None
    device_peak_bytes: int | None
    largest_difference: float | None


class ProcessorDevice(DocumentPart):
    """`option` is vLLM's own for it; `not_compared` has the reason of each modality whose processor
    computes on the CPU only. `cpu_threads` are those of torch here.
    """

    device: str
    cpu_threads: int
    option: str
    modalities: dict[str, ProcessedItems]
    not_compared: dict[str, str]
    label: Literal["measured"] = "measured"
