"""What a rehearsal finds: vLLM's startup on an imaginary GPU."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Shape


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
    def prefill(self) -> PromptsPeak | None:
        """The costliest step full of prompts."""
        return max(self.prefills, key=lambda one: one.phase.peak_bytes, default=None)
