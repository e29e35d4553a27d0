"""Memory, budget, rehearsal, startup, traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from mmcalib.domain.knobs import Label
from mmcalib.domain.memory import PhasePeak
from mmcalib.domain.traffic import HighestStep
from mmcalib.results.part import DocumentPart

if TYPE_CHECKING:
    from mmcalib.derive.demand import Headroom


class Memory(DocumentPart):
    """Bytes on one device, of as many alike as there are `ranks`; None where nothing has been
    measured or rehearsed.

    KV cache = requested − weights − buffers − activation peak − non-torch − CUDA graphs. The peak
    is the highest of `phases`, peaks by name; while serving a full encoder cache takes its part of
    that. *language model, served* is a step full of prompts as it is served, the costlier of one
    and of as many as may come at once, of a model with recurrent layers: vLLM's profile leaves
    them out. `labels` are those of figures that have another than `label`.
    """

    total_bytes: int | None = None
    requested_bytes: int | None = None
    weights_bytes: int | None = None
    buffers_bytes: int | None = None
    phases: dict[str, int] = Field(default_factory=dict)
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
    """Tokens, *computed*, as vLLM's MultiModalBudget has them for one configuration;
    `resident_items` of the corpus' largest fit into its encoder cache at once.
    """

    label: ClassVar[Label] = "computed"

    encoder_budget_tokens: int
    max_tokens_per_item: dict[str, int]
    profiled_modality: str | None
    profiled_items: int
    profiled_tokens: int | None
    worst_step_tokens: int | None
    max_num_batched_tokens: int
    resident_items: dict[str, int] = Field(default_factory=dict)

    @property
    def adequacy(self) -> float | None:
        """Profiled tokens over those of the worst step; None where either is not known."""
        if self.profiled_tokens is None or self.worst_step_tokens is None:
            return None
        worst = self.worst_step_tokens
        return round(self.profiled_tokens / worst, 4) if worst else 1.0


class Budgets(DocumentPart):
    """`yours` is of the configuration that the user gave, None where vLLM refuses it."""

    default: EncoderBudget
    calibrated: EncoderBudget
    yours: EncoderBudget | None = None


class ReplayResult(DocumentPart):
    """`prompts` were answered in one burst; they and others, `admitted` in all, were taken in."""

    prompts: int
    admitted: int = 0
    rejected: int
    oom: int
    token_mismatches: int
    encoder_tokens: int
    largest_encoder_step_tokens: int
    seconds: float


class Startup(DocumentPart):
    """The real engine start; `depth` and `true_depth` are layers (language model, encoder)."""

    device: str
    depth: tuple[int, int]
    true_depth: tuple[int, int]
    seconds: float
    figures: dict[str, float | int | None]
    replay: ReplayResult | None = None


class TimelineStep(DocumentPart):
    """One step of the timeline, the highest of its stretch; bytes above the loaded model."""

    step: int
    peak_bytes: int
    held_bytes: int
    alive_bytes: int
    tokens: int
    encoder_tokens: int
    scheduled: int
    waiting: int


class TrafficFigures(DocumentPart):
    """What serving took. `outside_bytes` is what `gpu_memory_utilization` leaves of the GPU's
    `total_bytes` beside what startup reserved. Counts of steps are exact; `encoder_waits` are
    requests held up in a step by the encoder or its cache. `concurrency` is the most requests that
    one step ran. The encoder cache may count `cache_tokens`; at its fullest it had embeddings of
    `most_cache_tokens` and entries of so many logical bytes, in storages of `cache_alive_bytes`
    that these keep alive. `timeline` has the step that took most, which `highest` describes.
    """

    requests: int
    refused: list[str]
    steps: int
    reserved_bytes: int
    outside_bytes: int
    total_bytes: int
    preemptions: int
    encoder_waits: int
    encoded_items: int
    reused_items: int
    cached_tokens: int
    concurrency: int
    kv_blocks: int
    most_kv_blocks: int
    cache_tokens: int
    most_cache_tokens: int
    cache_logical_bytes: int
    cache_alive_bytes: int
    highest: HighestStep | None
    timeline: list[TimelineStep]
    seconds: float

    @property
    def served(self) -> int:
        """Requests that were answered: all that vLLM did not refuse."""
        return self.requests - len(self.refused)

    @property
    def peak_bytes(self) -> int:
        """Of the highest step."""
        return max((one.peak_bytes for one in self.timeline), default=0)

    @property
    def margin(self) -> Headroom:
        # With numpy behind it, which a calibration that answers for items does without.
        from mmcalib.derive.demand import Headroom

        requested_bytes = self.total_bytes - self.outside_bytes
        return Headroom(self.total_bytes, requested_bytes, self.peak_bytes, self.reserved_bytes)

    @property
    def status(self) -> Literal["pass", "warn", "fail"]:
        """Pass where no step exceeds the reserve, warn where it found room beside it, else fail."""
        if not self.margin.fits:
            return "fail"
        return "pass" if self.margin.within else "warn"


class ServedTraffic(DocumentPart):
    """The corpus' requests served, *rehearsed*, on a GPU under the calibrated configuration and,
    where that starts there, under vLLM's defaults; else `default_problem` says why not.
    `assumptions` are what the requests do not say.
    """

    label: ClassVar[Label] = "rehearsed"

    gpu: str
    calibrated: TrafficFigures
    default: TrafficFigures | None
    default_problem: str = ""
    assumptions: list[str]


class Rehearsal(DocumentPart):
    """vLLM's startup on one imaginary GPU. `starts`: whether it would; `memory.note` says why not.

    True for the `vllm` version named, and for one rank of `tensor_parallel_size`.
    `max_model_len` is the context that vLLM arrives at, None where it does not start that far.
    `traffic` is what requests took that were served there, None where none were.
    `encoder_estimate_bytes` is the encoder's peak by formula; `cross_check` says where it differs.
    """

    memory: Memory
    budget: EncoderBudget | None
    max_model_len: int | None
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
    phases: list[PhasePeak]
    encoder_estimate_bytes: int | None
    cross_check: str
    seconds: float
    traffic: TrafficFigures | None = None

    def __repr__(self) -> str:
        tokens, starts = self.memory.kv_cache_tokens, "starts" if self.starts else "does not start"
        cache = "" if tokens is None else f"; KV cache {tokens:,} tokens"
        return f"<Rehearsal of {self.model}, vLLM {self.vllm} on {self.gpu}: {starts}{cache}>"

    __str__ = __repr__
