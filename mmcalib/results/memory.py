"""Memory, budget, rehearsal, startup, traffic."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from mmcalib.domain.knobs import Label
from mmcalib.results.part import DocumentPart


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


class EncoderBudget(DocumentPart):
    """Tokens, as vLLM's MultiModalBudget has them for one configuration; `resident_items` of the
    corpus' largest fit into its encoder cache at once. `max_model_len` is the context that vLLM
    arrives at, None in documents of before.
    """

    encoder_budget_tokens: int
    max_tokens_per_item: dict[str, int]
    items_per_batch: dict[str, int]
    profiled_modality: str | None
    profiled_items: int
    profiled_tokens: int | None
    worst_step_tokens: int | None
    adequacy: float | None
    max_num_batched_tokens: int
    max_model_len: int | None = None
    resident_items: dict[str, int] = Field(default_factory=dict)
    label: Label = "computed"


class Budgets(DocumentPart):
    """`yours` is of the configuration that the user gave, None where vLLM refuses it."""

    default: EncoderBudget
    calibrated: EncoderBudget
    yours: EncoderBudget | None = None


class PeakTensor(DocumentPart):
    """One tensor that lived at a phase's peak, and what made it."""

    bytes: int = Field(validation_alias=AliasChoices("bytes", "nbytes"))
    shape: tuple[int, ...]
    dtype: str
    operation: str
    module: str


class ReplayResult(DocumentPart):
    """`prompts` were answered in one burst; they and others, `admitted` in all, were taken in."""

    prompts: int
    admitted: int = 0
    rejected: int
    oom: int
    token_mismatches: int
    encoder_tokens: int
    largest_encoder_step_tokens: int
    left_out: int
    seconds: float


class Startup(DocumentPart):
    """The real engine start; `depth` and `true_depth` are layers (language model, encoder)."""

    device: str
    depth: tuple[int, int]
    true_depth: tuple[int, int]
    seconds: float
    figures: dict[str, float | int | None]
    replay: ReplayResult | None = None


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


class Phase(DocumentPart):
    """The most that a phase of vLLM's profile held above the loaded model, and in what."""

    name: str
    peak_bytes: int
    scratch_bytes: int
    scratch_operation: str
    largest: list[PeakTensor]


class Rehearsal(DocumentPart):
    """vLLM's startup on one imaginary GPU. `starts`: whether it would; `memory.note` says why not.

    True for the `vllm` version named, and for one rank of `tensor_parallel_size`.
    `traffic` is what requests took that were served there, None where none were.
    `encoder_estimate_bytes` is the encoder's peak by formula; `cross_check` says where it differs.
    """

    memory: Memory
    budget: EncoderBudget | None
    assumptions: list[str]
    starts: bool
    model: str
    source: Literal["local", "hub", "bundled"]
    config: str
    gpu: str
    capability: str
    vllm: str
    mmcalib: str
    runner: str
    sampler: str
    attention: str
    encoder_attention: str | None
    dtype: str
    tensor_parallel_size: int
    phases: list[Phase]
    encoder_estimate_bytes: int | None
    cross_check: str
    seconds: float
    traffic: TrafficFigures | None = None

    def __repr__(self) -> str:
        """One line."""
        tokens, starts = self.memory.kv_cache_tokens, "starts" if self.starts else "does not start"
        cache = "" if tokens is None else f"; KV cache {tokens:,} tokens"
        return f"<Rehearsal of {self.model}, vLLM {self.vllm} on {self.gpu}: {starts}{cache}>"

    __str__ = __repr__
