"""What a server's log states, each figure as often as a worker stated it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mmcalib.derive.logs.arguments import Value
from mmcalib.derive.logs.causes import AllocationFailed, Cause, ItemRefused, KvCacheTooSmall
from mmcalib.derive.logs.closure import Closure
from mmcalib.derive.logs.figures import Quantity
from mmcalib.derive.logs.log_release import LogRelease
from mmcalib.derive.logs.phases import Phase
from mmcalib.derive.logs.retired import RetiredKnob

ModelRunner = Literal["V0", "V1", "V2"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure of one line. `process` is as vLLM names it, None where it is the only one."""

    quantity: Quantity
    nbytes: int
    process: str | None
    line: int


@dataclass(frozen=True, slots=True)
class LoggedBudget:
    """The encoder cache, and what was profiled for it; items None where the line leaves it out."""

    tokens: int
    items: int | None
    modality: str | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """One error, however many workers and loggers repeat it; `line` is where it came first."""

    cause: Cause
    phase: Phase | None
    process: str | None
    line: int
    times: int


@dataclass(frozen=True, slots=True)
class StartupLog:
    """The last start in a log; None and empty where it does not say.

    `engine_args` is what was set, `engine_config` what the engine made of it (scalars only). Bytes
    are those of the worker that decides: the smallest KV cache and free memory, the largest of all
    else; `readings` has every one. `serves`: the engine came up, whatever became of it later;
    `starts` counts the starts that the text has. `quote` are the lines that it stands on, without
    prefixes; arguments, which can hold secrets, are not among them.
    """

    vllm_version: str | None = None
    model: str | None = None
    engine_args: dict[str, Value] = field(default_factory=dict)
    engine_config: dict[str, Value] = field(default_factory=dict)
    readings: tuple[Reading, ...] = ()
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_concurrency_tokens: int | None = None
    encoder: LoggedBudget | None = None
    skips_mm_profiling: bool = False
    leaves_out_graphs: bool = False
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    model_runner: ModelRunner | None = None
    attention_backend: str | None = None
    encoder_attention_backend: str | None = None
    sampler: str | None = None
    troubles: tuple[Trouble, ...] = ()
    retired: tuple[RetiredKnob, ...] = ()
    release: LogRelease = field(default_factory=LogRelease)
    closures: tuple[Closure, ...] = ()
    quote: tuple[str, ...] = ()
    serves: bool = False
    starts: int = 0

    def all_bytes(self, quantity: Quantity) -> tuple[int, ...]:
        """Every reading of a quantity, in the order of the lines."""
        return tuple(found.nbytes for found in self.readings if found.quantity == quantity)

    @property
    def weights_bytes(self) -> int | None:
        return max(self.all_bytes("weights"), default=None)

    @property
    def activation_peak_bytes(self) -> int | None:
        """As stated: with the graph estimate in it where the log states `consumed_bytes`."""
        return max(self.all_bytes("activation_peak"), default=None)

    @property
    def consumed_bytes(self) -> int | None:
        """Weights and non-torch memory together, as logs state it from 0.27.0 on."""
        return max(self.all_bytes("consumed"), default=None)

    @property
    def non_torch_bytes(self) -> int | None:
        """As stated, or what is consumed beyond the weights."""
        stated = self.all_bytes("non_torch")
        if stated:
            return max(stated)
        if self.consumed_bytes is None or self.weights_bytes is None:
            return None
        return max(self.consumed_bytes - self.weights_bytes, 0)

    @property
    def kv_cache_bytes(self) -> int | None:
        """May be negative: so much was missing before the first block."""
        left = self.all_bytes("kv_cache_left") or self.all_bytes("kv_cache")
        for trouble in self.troubles if not left else ():
            if isinstance(trouble.cause, KvCacheTooSmall):
                return trouble.cause.available_bytes
        return min(left, default=None)

    @property
    def cudagraph_bytes(self) -> int | None:
        """What the captured graphs took."""
        return max(self.all_bytes("cudagraph"), default=None)

    @property
    def cudagraph_estimate_bytes(self) -> int | None:
        """What was kept for graphs before the KV cache; subtracted by default from 0.21 on."""
        return max(self.all_bytes("cudagraph_estimate"), default=None)

    @property
    def reserved_graphs_bytes(self) -> int | None:
        """What the KV cache is smaller by for graphs; None where the log does not tell."""
        if self.leaves_out_graphs or self.engine_args.get("enforce_eager") is True:
            return 0
        return self.cudagraph_estimate_bytes

    @property
    def activation_alone_bytes(self) -> int | None:
        """The peak without the estimate for graphs; None where they cannot be told apart."""
        peak = self.activation_peak_bytes
        if self.consumed_bytes is None or peak is None:
            return peak
        graphs = self.reserved_graphs_bytes
        return None if graphs is None else peak - graphs

    @property
    def gpu_total_bytes(self) -> int | None:
        return min(self.all_bytes("gpu_total"), default=None)

    @property
    def gpu_free_bytes(self) -> int | None:
        """Free when vLLM started."""
        return min(self.all_bytes("gpu_free"), default=None)

    @property
    def requested_bytes(self) -> int | None:
        """What vLLM may use: as stated, or gpu_memory_utilization of a total that is stated."""
        stated = self.all_bytes("requested")
        if stated:
            return min(stated)
        if self.gpu_total_bytes is None or self.gpu_memory_utilization is None:
            return None
        return round(self.gpu_total_bytes * self.gpu_memory_utilization)

    @property
    def failure(self) -> Trouble | None:
        """The first error that ends a server: not a retried allocation, not a refused request."""
        for trouble in self.troubles:
            if not isinstance(trouble.cause, AllocationFailed | ItemRefused):
                return trouble
        return None

    @property
    def phase(self) -> Phase | None:
        """The phase of the failure, None where nothing failed or nothing tells."""
        return self.failure.phase if self.failure else None
