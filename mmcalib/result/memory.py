"""Where the memory of a device goes."""

from __future__ import annotations

from pydantic import Field

from mmcalib.domain.label import Label
from mmcalib.result.part import DocumentPart


class Memory(DocumentPart):
    """Bytes on one device, of as many alike as there are `ranks`; None where nothing has been
    measured or rehearsed.

    KV cache = requested − weights − buffers − activation peak − non-torch − CUDA graphs. The peak
    is the highest of its phases; while serving a full encoder cache takes its part of that.
    `prefill_peak_bytes` is a step full of prompts as it is served, the costlier of one and of as
    many as may come at once, of a model with recurrent layers: vLLM's profile leaves them out.
    """

    total_bytes: int | None = None
    requested_bytes: int | None = None
    weights_bytes: int | None = None
    buffers_bytes: int | None = None
    encoder_peak_bytes: int | None = None
    language_model_peak_bytes: int | None = None
    prefill_peak_bytes: int | None = None
    sampler_peak_bytes: int | None = None
    encoder_cache_bytes: int | None = None
    activation_peak_bytes: int | None = None
    non_torch_bytes: int | None = None
    cudagraph_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    kv_bytes_per_token: int | None = None
    max_concurrency: float | None = None
    label: Label | None = None
    labels: dict[str, Label] = Field(default_factory=dict)
    gpu: str | None = None
    ranks: int = 1
    note: str = ""


class Memories(DocumentPart):
    """`default` and `calibrated` as rehearsed on a GPU, where one was named, else as measured in
    the engine start; `measured` is always the engine start's, None where it is the same. `yours`
    is the configuration that the user gave, as rehearsed.
    """

    default: Memory
    calibrated: Memory
    yours: Memory | None = None
    measured: Memory | None = None
