"""Encoder budget, rehearsed memory, and memory measured at an engine's start."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from mmcalib.domain.knobs import Label
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.text import gib


@dataclass(frozen=True, slots=True)
class Dummy:
    """The item that vLLM profiles with: its embeds, and its size from the dummy builder."""

    embeds: int
    tensor_bytes: int
    size: dict[str, int]

    def shape(self, modality: Modality, rate_hz: int | None = None, share: int = 1) -> Shape:
        """A file of this size, its sides or length divided by `share`; two frames a second."""
        size = self.size
        if modality == "audio":
            return AudioShape(max(1, size["length"] // share), rate_hz or 16_000)
        sides = (size[side] // share for side in ("width", "height"))
        width, height = (max(56, pixels - pixels % 2) for pixels in sides)
        if modality == "image":
            return ImageShape(width, height)
        frames = size["num_frames"]
        return VideoShape(frames, 2.0, frames / 2, width, height)


@dataclass(frozen=True, slots=True)
class Clip:
    """A video as the loader returns it, and the encoder-cache entries that it takes."""

    embeds: int
    num_frames: int
    width_px: int
    height_px: int

    def __str__(self) -> str:
        return f"{self.num_frames} frames of {self.width_px}×{self.height_px}"


@dataclass(frozen=True, slots=True)
class Budget:
    """Encoder budget in tokens, as vLLM computes it, and what its profile would run:
    `profiled_items` of `profiled_modality`, each as in `dummies`. `largest_clip` is the largest
    that loader and processor make of any video, None if unbounded.
    """

    encoder_compute_budget: int
    encoder_cache_size: int
    max_tokens_per_item: dict[Modality, int]
    max_items_per_prompt: dict[Modality, int]
    profiled_modality: Modality | None
    profiled_items: int
    dummies: dict[Modality, Dummy]
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    largest_clip: Clip | None = None

    @property
    def encoder_budget_tokens(self) -> int:
        """Tokens that one step may encode: the scheduler applies both limits."""
        return min(self.encoder_compute_budget, self.encoder_cache_size)

    @property
    def profiled_embeds(self) -> int:
        """Embeds of each item of the profile; 0 if it has none."""
        if self.profiled_modality is None:
            return 0
        dummy = self.dummies.get(self.profiled_modality)
        return dummy.embeds if dummy else self.max_tokens_per_item[self.profiled_modality]

    def largest_item(self, modality: Modality) -> int:
        """The most tokens that an admissible item of the modality takes; 0 without a budget. For
        video vLLM reports only its dummy; a real one may be larger, up to what one step encodes.
        """
        most = self.max_tokens_per_item.get(modality, 0)
        if modality != "video" or not most:
            return most
        if self.largest_clip is None:
            return self.encoder_budget_tokens
        return min(self.encoder_budget_tokens, max(most, self.largest_clip.embeds))


@dataclass(frozen=True, slots=True)
class EncoderStep:
    """One step of the encoder beyond the startup profile: `items` blank items of `shape`."""

    shape: Shape
    items: int


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """One live tensor at a phase's peak: bytes, and the operation and module that made it."""

    nbytes: int
    operation: str
    shape: tuple[int, ...]
    dtype: str
    module: str


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The most bytes that a phase of the profile used above the loaded model, and the tensors;
    `scratch_bytes` of them are the workspace of a kernel, `scratch_operation`.
    """

    name: str
    peak_bytes: int
    scratch_bytes: int
    scratch_operation: str
    largest: tuple[LiveTensor, ...]


@dataclass(frozen=True, slots=True)
class PromptsPeak:
    """The peak of a step full of equal prompts."""

    prompts: int
    phase: PhasePeak


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The most bytes that a step used above the loaded model, inputs and outputs included, and the
    number of embeddings. Both are None if it could not run; `problem` is the reason.
    """

    step: EncoderStep
    peak_bytes: int | None
    tokens: int | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class EncoderOutputs:
    """Memory of encoder outputs, which stays while any item of their batch is cached.

    `held_bytes` is the storage of the profile's outputs, which live through its later phases;
    divided by their rows it is `bytes_per_token`. `shared`: items of one batch are views of one
    storage; None if the profile ran one item. `outlive_request`: they stay after their request.
    """

    bytes_per_token: int
    held_bytes: int = 0
    shared: bool | None = None
    outlive_request: bool = True


GRAPHS: Final = "CUDA graphs"


def floor_utilization(nbytes: int, total_bytes: int, parts: int = 100) -> float:
    """The `gpu_memory_utilization` in steps of 1/`parts` that takes at most `nbytes` of the GPU."""
    return max(0, math.floor(parts * nbytes / total_bytes) / parts)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that a start takes outside vLLM's reserve."""

    name: str
    nbytes: int
    label: Label


_BEFORE_KV_CACHE: Final = (
    *("start", "weights", "profile", "profile: encoder", "profile: language model"),
)


@dataclass(frozen=True, slots=True)
class Division:
    """How a start divides the GPU: vLLM's share by default, and the highest share to propose.

    The KV cache is sized before warm-up, by the profile and the estimates of CUDA graphs of these
    runners; one that `is_extensible` after warm-up and graph capture, by what is then free, of
    which the most of `floor_bytes`, `of_peak` of the activation peak and `of_budget` stays free.
    """

    utilization: float
    most_utilization: float
    estimates_graphs: tuple[str, ...] = ()
    is_extensible: bool = False
    floor_bytes: int = 0
    of_peak: float = 0.0
    of_budget: float = 0.0

    def reserve_bytes(self, peak_bytes: int, budget_bytes: int) -> int:
        """Bytes that an extensible KV cache leaves of the budget."""
        shares = self.of_peak * peak_bytes, self.of_budget * budget_bytes
        return round(max(self.floor_bytes, *shares)) if self.is_extensible else 0

    def is_before_kv_cache(self, phase: str | None) -> bool:
        """True for a phase of a start in which a smaller KV cache frees no memory."""
        later = ("warm-up", "cuda graphs") if self.is_extensible else ()
        return phase in (*_BEFORE_KV_CACHE, *later)


@dataclass(frozen=True, slots=True)
class RehearsedMemory:
    """The memory that vLLM's startup would find on that GPU; bytes of one rank.

    `kv_cache_bytes` = requested − weights − buffers − activation peak − non-torch − CUDA graphs (if
    it is extensible, requested is at most what is free, and `spare_bytes` are subtracted); below
    zero the engine would not start: `kv_cache_tokens`, `max_concurrency` and `kv_blocks`
    (vLLM's division of the KV cache) are None, and `problem` is vLLM's reason.
    `encoder_tokens` are the embeddings that the profile made; `outputs` describes their storage.
    `merge_peak_bytes` is the peak of writing a step full of embeddings into those of the text, on
    top of the cache; None if that could not run. `prefills` are steps full of one prompt, and of
    as many as can arrive together, as serving runs them, for a model with recurrent layers: the
    profile's own steps skip those layers.
    `capture_sizes` are the batch sizes, in tokens, of the CUDA graphs.
    `kept_bytes` are workspaces that kernels keep from the profile's later phases on, or from the
    first step with attention if nothing reserves them. Serving has them next to the encoder; the
    profile's encoder ran without them.
    `buffers_bytes` is what startup keeps besides the weights, with the allocator's rounding and
    `stack_bytes`, which CUDA keeps for kernels' stacks.
    `spare_bytes` of the requested memory stay free if the KV cache is extensible or of a set size.
    vLLM finds `free_bytes` at its first look (None: all), without what the ranks took
    `before_snapshot`; `refusal` is its error if it requests more.
    Non-torch and CUDA graphs are allowances, see `assumptions`, except
    `cudagraph_attention_bytes`: what attention keeps from capturing graphs.
    """

    vllm: str
    division: Division
    runner: str
    sampler: str
    attention: str
    encoder_attention: str | None
    dtype: str
    tensor_parallel_size: int
    total_bytes: int
    requested_bytes: int
    weights_bytes: int
    buffers_bytes: int
    activation_peak_bytes: int
    phases: tuple[PhasePeak, ...]
    non_torch_bytes: int
    cudagraph_bytes: int
    cudagraphs: int
    encoder_cache_bytes: int
    kv_cache_bytes: int
    kv_bytes_per_token: int
    kv_cache_tokens: int | None
    max_concurrency: float | None
    problem: str
    budget: Budget | None
    assumptions: tuple[str, ...]
    seconds: float
    encoder_tokens: int = 0
    outputs: EncoderOutputs | None = None
    merge_peak_bytes: int | None = None
    prefills: tuple[PromptsPeak, ...] = ()
    capture_sizes: tuple[int, ...] = ()
    steps: tuple[StepPeak, ...] = ()
    kv_blocks: int | None = None
    kept_bytes: int = 0
    cudagraph_attention_bytes: int = 0
    spare_bytes: int = 0
    stack_bytes: int = 0
    free_bytes: int | None = None
    refusal: str = ""
    after_pool: tuple[Allocation, ...] = ()
    before_snapshot: tuple[Allocation, ...] = ()

    @property
    def encoder_peak_bytes(self) -> int | None:
        """The peak of the profile's encoder; None if the profile runs no encoder."""
        return next((one.peak_bytes for one in self.phases if one.name == "encoder"), None)

    @property
    def _free_bytes(self) -> int:
        return self.total_bytes if self.free_bytes is None else self.free_bytes

    @property
    def outside_bytes(self) -> int:
        """Bytes that stay free next to all that vLLM reserves; negative if it reserves too much."""
        used = self.weights_bytes + self.buffers_bytes + self.activation_peak_bytes
        used += self.non_torch_bytes + self.cudagraph_bytes + max(0, self.kv_cache_bytes)
        return self._free_bytes - max(self.requested_bytes, used)

    @property
    def needed_outside_bytes(self) -> int:
        """Bytes of `after_pool` for which the start has no other room."""
        return max(0, sum(one.nbytes for one in self.after_pool) - self._idle_bytes)

    @property
    def _idle_bytes(self) -> int:
        """The part of the reserve that only the encoder needs: a start runs the language model."""
        peaks = [one.peak_bytes for one in self.phases if one.name != "encoder"]
        return max(0, self.activation_peak_bytes - max(peaks, default=0))

    @property
    def outside_for_steps_bytes(self) -> int:
        """Bytes outside the reserve that steps may use: they allocate workspaces themselves.

        What does not start is judged as if its reserve sufficed, which `problem` denies already.
        """
        starts = self.kv_cache_tokens is not None
        outside = self.outside_bytes if starts else self._free_bytes - self.requested_bytes
        return outside - sum(o.nbytes for o in self.after_pool if o.name == GRAPHS)

    @property
    def start_problem(self) -> str:
        """Why the start fails, in vLLM's words but for the advice at their end; empty if not."""
        if self.refusal or self.kv_cache_tokens is None:
            return (self.refusal or self.problem).partition(" Try ")[0].rstrip(".")
        room = self.outside_bytes + self.spare_bytes + self._idle_bytes
        if sum(one.nbytes for one in self.after_pool) <= room:
            return ""
        parts = ", ".join(f"{one.name} {gib(one.nbytes)}" for one in self.after_pool)
        # A KV cache of a set size may be larger than what is free.
        when = f"after the KV cache: {parts}" if parts else "with a KV cache of this size"
        left = gib(max(0, self.outside_bytes))
        return f"out of memory {when}; {left} stay free outside vLLM's reserve"

    @property
    def starts(self) -> bool:
        return self.kv_cache_tokens is not None and not self.start_problem

    @property
    def most_utilization(self) -> float:
        """The highest `gpu_memory_utilization` in hundredths with which nothing runs out."""
        if self.division.is_extensible and not self.refusal:
            return 1.0
        return floor_utilization(self._free_bytes - self.needed_outside_bytes, self.total_bytes)

    @property
    def proposed_utilization(self) -> float:
        """The highest `gpu_memory_utilization` in hundredths to propose."""
        return min(self.division.most_utilization, self.most_utilization)

    def card_bytes(self, lacking_bytes: int) -> int:
        """Memory of a GPU that has so many bytes more for vLLM, by default."""
        return round((self.requested_bytes + lacking_bytes) / self.division.utilization)

    @property
    def prefill(self) -> PromptsPeak | None:
        """The costliest step full of prompts."""
        return max(self.prefills, key=lambda one: one.phase.peak_bytes, default=None)


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Memory that vLLM's CUDA worker measured and decided at a start; bytes. None if the installed
    release does not record the figure.

    `kv_cache_bytes` = requested − weights − beside − activation peak − CUDA graphs, as vLLM
    computed it. `beside_bytes` is what it counts besides the weights, in torch and outside it, and
    `non_torch_bytes` the part outside. `cudagraph_bytes` is the estimate that it subtracted,
    `cudagraph_captured_bytes` what the graphs then took. `phases` are peaks of a second profile
    above its start, under the same names as in a rehearsal.
    """

    runner: str
    total_bytes: int | None = None
    free_before_bytes: int | None = None
    requested_bytes: int | None = None
    weights_bytes: int | None = None
    activation_peak_bytes: int | None = None
    phases: dict[str, int] = field(default_factory=dict)
    beside_bytes: int | None = None
    non_torch_bytes: int | None = None
    cudagraph_bytes: int | None = None
    cudagraph_captured_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """Figures read inside the worker, in bytes and seconds; None if not measured.

    `*_full_*` figures are scaled to the true depth. `gpu` is None on the CPU, where mmcalib traces
    the peak. `computed_in` is the dtype used instead of one that this CPU does not support.
    `most_step_tokens` is the largest encoder step that fits; None if vLLM's whole profile does.
    """

    device: str
    start_s: float
    weights_bytes: int
    weights_full_bytes: int
    kv_bytes_per_token: int
    kv_full_bytes_per_token: int
    encoder_seconds_per_token: float | None
    profile_estimate_s: float | None
    profile_s: float | None
    activation_peak_bytes: int | None
    budget_tokens: int
    profiled_modality: str | None
    profiled_items: int
    computed_in: str | None = None
    most_step_tokens: int | None = None
    gpu: WorkerMemory | None = None
