"""Requests served on an imaginary GPU, as one part of a rehearsal's document."""

from __future__ import annotations

from typing import Literal

from mmcalib.domain.label import Label
from mmcalib.result.part import DocumentPart
from mmcalib.result.peak_tensor import PeakTensor


class EncoderCacheUse(DocumentPart):
    """The encoder cache at its fullest: embeddings of `tokens` it may count, bytes of its entries,
    and of the storages that these keep alive.
    """

    tokens: int
    used_tokens: int
    logical_bytes: int
    alive_bytes: int


class HighestTrafficStep(DocumentPart):
    """The step that took most, what it ran and encoded by the requests' origins, and its largest
    tensors.
    """

    number: int
    tokens: int
    encoder_tokens: int
    requests: list[str]
    encoding: list[str]
    largest: list[PeakTensor]


class TimelineStep(DocumentPart):
    """One step of the timeline, the highest of its stretch; bytes above the loaded model."""

    step: int
    peak_bytes: int
    held_bytes: int
    logical_bytes: int
    alive_bytes: int
    tokens: int
    encoder_tokens: int
    kv_blocks: int
    scheduled: int
    waiting: int


class TrafficFigures(DocumentPart):
    """What serving took. `margin_bytes` is what the highest step left of what startup reserved,
    `outside_bytes` what `gpu_memory_utilization` leaves beside that.

    `status`: pass where no step went beyond the reserve, warn where it found room beside it, fail
    where it did not; `fitting_utilization` is the `gpu_memory_utilization` that would leave enough.
    Counts of steps are exact; `encoder_waits` are requests held up in a step by
    the encoder or its cache. `concurrency` is the most requests that one step ran.
    """

    requests: int
    of: int
    served: int
    refused: list[str]
    steps: int
    peak_bytes: int
    reserved_bytes: int
    outside_bytes: int
    margin_bytes: int
    fitting_utilization: float | None = None
    status: Literal["pass", "warn", "fail"]
    preemptions: int
    encoder_waits: int
    encoded_items: int
    reused_items: int
    cached_tokens: int
    concurrency: int
    kv_blocks: int
    most_kv_blocks: int
    encoder_cache: EncoderCacheUse
    highest: HighestTrafficStep | None
    timeline: list[TimelineStep]
    seconds: float


class ServedTraffic(DocumentPart):
    """The corpus' requests served on a GPU under the calibrated configuration and, where that
    starts there, under vLLM's defaults; else `default_problem` says why not. `assumptions` are what
    the requests do not say.
    """

    gpu: str
    calibrated: TrafficFigures
    default: TrafficFigures | None
    default_problem: str = ""
    assumptions: list[str]
    label: Label = "rehearsed"
