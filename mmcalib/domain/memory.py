"""Budget, Rehearsed, WorkerMemory."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmcalib.domain.shapes import Modality, Shape


@dataclass(frozen=True, slots=True)
class Dummy:
    """The item that vLLM profiles with: its embeds, and its size as the dummy builder made it."""

    embeds: int
    tensor_bytes: int
    size: dict[str, int]


@dataclass(frozen=True, slots=True)
class Clip:
    """A video as the loader hands it over, and the encoder-cache entries that it takes."""

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
    that loader and processor make of any video, None where nothing bounds it.
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
        """What one step may encode: the scheduler heeds both limits."""
        return min(self.encoder_compute_budget, self.encoder_cache_size)

    def largest_item(self, modality: Modality) -> int:
        """The most tokens that an admissible item of the modality takes; 0 where none is budgeted.

        An image or sound is at most what vLLM says is the largest. Its largest video is the one of
        its dummies: a real one may be larger, up to what a step may encode.
        """
        most = self.max_tokens_per_item.get(modality, 0)
        if modality != "video" or not most:
            return most
        if self.largest_clip is None:
            return self.encoder_budget_tokens
        return min(self.encoder_budget_tokens, max(most, self.largest_clip.embeds))


@dataclass(frozen=True, slots=True)
class EncoderStep:
    """One step of the encoder beyond the startup profile: so many blank items of a shape."""

    shape: Shape
    items: int


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """One tensor alive at a phase's peak: bytes, and the operation and module that made it."""

    nbytes: int
    operation: str
    shape: tuple[int, ...]
    dtype: str
    module: str


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The most bytes that a phase of the profile held above the loaded model, and in what.

    `scratch_bytes` of them are a kernel's own, `scratch_operation`'s.
    """

    name: str
    peak_bytes: int
    scratch_bytes: int
    scratch_operation: str
    largest: tuple[LiveTensor, ...]


@dataclass(frozen=True, slots=True)
class PromptsPeak:
    """A step full of so many prompts alike."""

    prompts: int
    phase: PhasePeak


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The most bytes that a step held above the loaded model, inputs and outputs included, and the
    embeddings that it made; None of both where `problem` says why it could not be run.
    """

    step: EncoderStep
    peak_bytes: int | None
    tokens: int | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What encoder outputs hold for as long as any item of their batch is cached.

    `held_bytes` is the storage of the profile's, which lives through its later phases; divided by
    their rows it is `bytes_per_token`. `shared`: items of one batch are views of one storage; None
    where the profile had one item. `outlive`: they stay when their request is through.
    """

    bytes_per_token: int
    held_bytes: int = 0
    shared: bool | None = None
    outlive: bool = True


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What vLLM's startup would find on that GPU; bytes of one rank.

    `kv_cache_bytes` = requested − weights − buffers − activation peak − non-torch − CUDA graphs;
    below zero the engine would not start. `kv_cache_tokens` and `max_concurrency` are None then,
    and `problem` is vLLM's reason. `encoder_tokens` are the embeddings that the profile made, of
    `outputs`. `merge_peak_bytes` is what it takes to write a step full of embeddings among those
    of the text, beside the cache that they come from; None where that could not be run. `prefills`
    are steps full of one prompt, and of as many as may come at once, as serving runs them, of a
    model with recurrent layers: the profile's own leaves them out.
    `capture_sizes` are the batches, in tokens, that CUDA graphs are captured of.
    `kv_blocks` is what vLLM divides the KV cache into; None where it would not start. `kept_bytes`
    are workspaces that kernels keep from the profile's later phases on, or from the first step that
    attends where nothing reserves them: serving has them beside the encoder, and the profile's
    encoder had not.
    `buffers_bytes` is what startup keeps beside the weights, with the allocator's rounding.
    `spare_bytes` of what is requested are left beside a KV cache of a given size.
    Non-torch and CUDA graphs are allowances, as `assumptions` say, but for
    `cudagraph_attention_bytes`: what attention keeps of the steps that graphs are captured of.
    """

    vllm: str
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
    outputs: Outputs | None = None
    merge_peak_bytes: int | None = None
    prefills: tuple[PromptsPeak, ...] = ()
    capture_sizes: tuple[int, ...] = ()
    steps: tuple[StepPeak, ...] = ()
    kv_blocks: int | None = None
    kept_bytes: int = 0
    cudagraph_attention_bytes: int = 0
    spare_bytes: int = 0

    @property
    def encoder_peak_bytes(self) -> int | None:
        """The peak of the profile's encoder; None where it has none."""
        return next((one.peak_bytes for one in self.phases if one.name == "encoder"), None)

    @property
    def prefill(self) -> PromptsPeak | None:
        """The costliest step full of prompts."""
        return max(self.prefills, key=lambda one: one.phase.peak_bytes, default=None)


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """What vLLM's CUDA worker measured of its GPU at a start, and decided; bytes. None where the
    installed release keeps no such figure.

    `kv_cache_bytes` = requested − weights − beside − activation peak − CUDA graphs, as vLLM
    computed it. `beside_bytes` is what it counts beside the weights, in torch and outside it, and
    `non_torch_bytes` the part outside. `cudagraph_bytes` is the estimate that was subtracted,
    `cudagraph_captured_bytes` what the graphs then took. `phases` are peaks of a second profile
    above its start, by the names that a rehearsal has for them.
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
