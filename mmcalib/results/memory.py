"""Models of memory, encoder budget, startup, rehearsal and traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from mmcalib.domain.knobs import Label
from mmcalib.domain.memory import Allocation, PhasePeak
from mmcalib.domain.traffic import HighestStep
from mmcalib.results.part import DocumentPart

if TYPE_CHECKING:
    from mmcalib.limits.demand import Shortfall


class Memory(DocumentPart):
    """Memory of one GPU. KV cache = requested − weights − buffers − activation peak − non-torch −
    CUDA graphs − spare (if extensible). Null: unknown.
    """

    total_bytes: int | None = Field(default=None, description="As torch reports it")
    requested_bytes: int | None = Field(
        default=None, description="Limit set by `gpu_memory_utilization`"
    )
    weights_bytes: int | None = Field(
        default=None, description="Loaded model; of an engine start: parameters"
    )
    buffers_bytes: int | None = Field(default=None, description="Other memory kept after startup")
    stack_bytes: int = Field(default=0, description="Of that, kernels' stacks")
    # `language model, served` is the costlier of a step full of one prompt and of the most prompts.
    phases: dict[str, int] = Field(
        default_factory=dict,
        description="Peak bytes by profiled phase. vLLM's profile omits recurrent layers; "
        "`language model, served` includes them",
    )
    encoder_cache_bytes: int | None = Field(default=None, description="When full; computed")
    activation_peak_bytes: int | None = Field(default=None, description="Highest profiled phase")
    non_torch_bytes: int | None = Field(default=None, description="Assumed in a rehearsal")
    cudagraph_bytes: int | None = Field(default=None, description="Assumed in a rehearsal")
    spare_bytes: int = Field(default=0, description="Left free beside the KV cache")
    mode: Literal["profiled", "extensible"] | None = Field(
        default=None, description="KV cache sized before warm-up, or last (extensible)"
    )
    kv_cache_bytes: int | None = Field(default=None, description="Negative: vLLM would not start")
    kv_cache_tokens: int | None = None
    kv_bytes_per_token: int | None = Field(default=None, description="Without recurrent state")
    max_concurrency: float | None = Field(default=None, description="Full-length requests at once")
    kv_cache_range_bytes: tuple[int, int] | None = Field(
        default=None, description="On a GPU that shares the host's memory, whose use varies"
    )
    free_bytes: int | None = Field(default=None, description="What vLLM finds free when it starts")
    outside_bytes: int | None = Field(
        default=None, description="Free outside all that vLLM reserves; negative: it does not start"
    )
    after_pool: list[Allocation] = Field(
        default_factory=list, description="What the start takes outside the reserve"
    )
    before_snapshot: list[Allocation] = Field(default_factory=list, description="Taken by NCCL")
    most_utilization: float | None = Field(
        default=None, description="Highest `gpu_memory_utilization` that the free memory allows"
    )
    starts: bool | None = Field(default=None, description="If false, `note` has the reason")
    label: Label | None = None
    labels: dict[str, Label] = Field(default_factory=dict, description="Keys whose label differs")
    gpu: str | None = None
    ranks: int = Field(default=1, description="GPUs that share the model (tensor parallelism)")
    note: str = Field(default="", description="Origin of the figures, or vLLM's startup error")


class Memories(DocumentPart):
    """Memory by configuration: rehearsed with `--gpu`, otherwise measured at the engine start."""

    default: Memory
    calibrated: Memory
    yours: Memory | None = None
    measured: Memory | None = Field(default=None, description="At start, if others are rehearsed")


class EncoderBudget(DocumentPart):
    """Encoder tokens of one configuration, computed with vLLM's MultiModalBudget."""

    label: ClassVar[Label] = "computed"

    encoder_budget_tokens: int = Field(description="Most that an item or a step may encode")
    max_tokens_per_item: dict[str, int] = Field(description="Largest reserved item, by modality")
    profiled_modality: str | None = Field(description="Modality of vLLM's startup profile")
    profiled_items: int
    profiled_tokens: int | None = Field(description="Items × vLLM's dummy; null for the defaults")
    worst_step_tokens: int | None = Field(
        description="Most that one step may encode; adequacy = profiled ÷ worst, passes from 0.9"
    )
    max_num_batched_tokens: int
    resident_items: dict[str, int] = Field(
        default_factory=dict, description="Largest items that fit the encoder cache, by modality"
    )

    @property
    def adequacy(self) -> float | None:
        """Profiled tokens over the tokens of the worst step; None if either is unknown."""
        if self.profiled_tokens is None or self.worst_step_tokens is None:
            return None
        worst = self.worst_step_tokens
        return round(self.profiled_tokens / worst, 4) if worst else 1.0


class Budgets(DocumentPart):
    """Encoder budget by configuration."""

    default: EncoderBudget = Field(description="No limits, same context")
    calibrated: EncoderBudget
    yours: EncoderBudget | None = Field(default=None, description="Null if vLLM rejects it")


class ReplayResult(DocumentPart):
    """One burst of the corpus' prompts, measured."""

    prompts: int = Field(description="Sent at once and answered")
    admitted: int = Field(default=0, description="Also counts prompts dropped unanswered")
    rejected: int = Field(description="Rejected or unanswered")
    oom: int = Field(description="Rejected: out of GPU memory")
    token_mismatches: int = Field(description="Prompts whose items cost other tokens than measured")
    encoder_tokens: int
    largest_encoder_step_tokens: int
    seconds: float


class Startup(DocumentPart):
    """The engine start on this machine, measured."""

    device: str
    depth: tuple[int, int] = Field(description="Layers (language model, encoder) that ran")
    true_depth: tuple[int, int] = Field(description="Layers of the model")
    seconds: float
    figures: dict[str, float | int | None] = Field(description="Read in the worker, at `depth`")
    replay: ReplayResult | None = None


class TimelineStep(DocumentPart):
    """The costliest step of a stretch; bytes above the loaded model and its KV cache."""

    step: int
    peak_bytes: int
    held_bytes: int = Field(description="After the step")
    alive_bytes: int = Field(description="Held by the encoder cache")
    tokens: int
    encoder_tokens: int
    scheduled: int = Field(description="Requests in the step")
    waiting: int = Field(description="Requests in the queue")


class TrafficFigures(DocumentPart):
    """Served requests, rehearsed with vLLM's scheduler and model runner."""

    requests: int
    refused: list[str] = Field(description="Rejected requests and reasons")
    steps: int
    reserved_bytes: int = Field(description="Peak that the startup profile reserved")
    margin_bytes: int = Field(description="Left of it at the highest peak; negative: exceeded")
    outside_bytes: int = Field(description="Free outside all that vLLM reserves")
    requested_bytes: int = Field(description="Limit set by `gpu_memory_utilization`")
    total_bytes: int = Field(description="GPU memory")
    preemptions: int = Field(description="Requests paused: no free KV block")
    encoder_waits: int = Field(description="Requests delayed by the encoder budget or cache")
    encoded_items: int
    reused_items: int = Field(description="Found in the encoder cache")
    cached_tokens: int = Field(description="Found in the prefix cache")
    concurrency: int = Field(description="Most requests in a step")
    kv_blocks: int
    most_kv_blocks: int = Field(description="Peak use")
    cache_tokens: int = Field(description="Encoder cache size")
    most_cache_tokens: int = Field(description="Peak use")
    cache_logical_bytes: int = Field(description="Bytes of the entries at peak use")
    cache_alive_bytes: int = Field(description="Bytes of the batches that the entries keep alive")
    highest: HighestStep | None = Field(description="The step with the highest peak")
    timeline: list[TimelineStep] = Field(description="At most 400 steps")
    seconds: float = Field(description="Wall time here")

    @property
    def served(self) -> int:
        """Requests that vLLM did not reject."""
        return self.requests - len(self.refused)

    @property
    def peak_bytes(self) -> int:
        return max((one.peak_bytes for one in self.timeline), default=0)

    @property
    def shortfall(self) -> Shortfall:
        """The highest step against the reserve."""
        # Imports numpy, which `check` does not need.
        from mmcalib.limits.demand import Demand, Shortfall

        highest = max(self.timeline, key=lambda one: one.peak_bytes, default=None)
        return Shortfall(
            reserved_bytes=self.reserved_bytes,
            worst=Demand(highest.tokens, highest.peak_bytes) if highest else Demand(0, 0),
            outside_bytes=self.outside_bytes,
            requested_bytes=self.requested_bytes,
            total_bytes=self.total_bytes,
        )

    @property
    def status(self) -> Literal["pass", "warn", "fail"]:
        """Pass within the reserve, warn above it but within the GPU's free memory, else fail."""
        if not self.shortfall.holds:
            return "fail"
        return "pass" if self.shortfall.passes else "warn"


class ServedTraffic(DocumentPart):
    """The corpus' requests, at most 200 at once, served on a GPU; rehearsed."""

    label: ClassVar[Label] = "rehearsed"

    gpu: str
    calibrated: TrafficFigures
    default: TrafficFigures | None = Field(description="With vLLM's defaults; null if they fail")
    default_problem: str = Field(default="", description="Why the defaults fail")
    assumptions: list[str] = Field(description="Values that the requests do not set")


class Rehearsal(DocumentPart):
    """vLLM's startup on one imaginary GPU, for one rank of `tensor_parallel_size`."""

    memory: Memory
    budget: EncoderBudget | None
    max_model_len: int | None = Field(description="Context; null: vLLM stopped before choosing it")
    assumptions: list[str]
    starts: bool = Field(description="If false, `memory.note` has the reason")
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
    seconds: float
    traffic: TrafficFigures | None = Field(default=None, description="Null without requests")

    def __repr__(self) -> str:
        tokens, starts = self.memory.kv_cache_tokens, "starts" if self.starts else "does not start"
        cache = "" if tokens is None else f"; KV cache {tokens:,} tokens"
        return f"<Rehearsal of {self.model}, vLLM {self.vllm} on {self.gpu}: {starts}{cache}>"
