"""What a GPU must have for a calibrated configuration, where its memory was looked at."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.derive.needed_memory import needed_bytes
from mmcalib.domain.label import Label
from mmcalib.result.calibration import CalibrationDocument


@dataclass(frozen=True, slots=True)
class NeededMemory:
    """`total_bytes` as torch reports it, from figures of `gpu`."""

    total_bytes: int
    gpu: str
    label: Label


def needed_on(calibration: CalibrationDocument) -> NeededMemory | None:
    """None where no GPU was named, or the figures are not all there."""
    memory = calibration.memory.calibrated
    context = calibration.engine_config.get("max_model_len")
    if memory.gpu is None or memory.label is None or not isinstance(context, int):
        return None
    requested, total = memory.requested_bytes, memory.total_bytes
    held, per_token = memory.kv_cache_bytes, memory.kv_bytes_per_token
    if not requested or not total or held is None or not per_token:
        return None
    found = needed_bytes(
        before_kv_bytes=requested - held,
        kv_bytes_per_token=per_token,
        max_model_len=context,
        utilization=requested / total,
    )
    return NeededMemory(found, memory.gpu, memory.label)
