"""What the parent asks of the child that owns vLLM, and what it answers. JSON on a pipe.

A request is answered by any number of `Said` and `Measured`, then by exactly one closing reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from mmcalib.census.shapes import AudioShape, ImageShape, Modality, VideoShape
from mmcalib.engine.setting import Setting
from mmcalib.gpus.gpu import Gpu

WireShape = Annotated[VideoShape | AudioShape | ImageShape, Field(union_mode="left_to_right")]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """Load config, tokenizer and processor of the checkpoint folder or cached hub model."""

    path: str
    max_model_len: int | None = None
    kind: Literal["open_model"] = "open_model"


@dataclass(frozen=True, slots=True)
class Knob:
    """One option of the model's processor or loader that changes what an item of `modality` costs.

    `path` is where it goes inside `argument`, outermost first; `value` its default; `unit_tokens`
    how many of its units make one token, None where tokens do not follow from it; `companions` are
    values that must stand beside it (the other edge of a size); `steps` are the values worth
    trying, ascending to the default, where neither tokens nor tiles say which.
    """

    name: str
    modality: Modality
    path: tuple[str, ...]
    value: int | float
    unit_tokens: int | None
    companions: dict[str, int] = field(default_factory=dict)
    argument: Literal["mm_processor_kwargs", "media_io_kwargs"] = "mm_processor_kwargs"
    steps: tuple[int | float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelOpened:
    """What vLLM says of the model, before anything is measured.

    `modalities` maps each supported modality to how many items vLLM itself allows (None: any).
    `serve_defaults` are the engine values that `vllm serve` would choose on this machine.
    `audio_rate_hz` is the rate to which clips are resampled, None without audio.
    """

    architecture: str
    modalities: dict[Modality, int | None]
    max_model_len: int
    knobs: tuple[Knob, ...]
    serve_defaults: dict[str, int]
    chunks_mm_input: bool
    video_loader: str | None
    audio_rate_hz: int | None
    device: str
    versions: dict[str, str]
    kind: Literal["model_opened"] = "model_opened"


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank stand-in of this shape, sampled as the server would sample a real one."""

    modality: Modality
    shape: WireShape


@dataclass(frozen=True, slots=True)
class File:
    """A real file, loaded by vLLM's own media loader."""

    modality: Modality
    path: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Cost every subject under the setting; answered by one `Measured` each, in order."""

    setting: Setting
    subjects: tuple[Blank | File, ...]
    kind: Literal["measure"] = "measure"


@dataclass(frozen=True, slots=True)
class Cost:
    """What vLLM's processor makes of one item.

    `tokens` is the length of its placeholder in the prompt, `embeds` its entries in the encoder
    cache, `tensor_bytes` the processed tensors sent to the encoder. `sampled` is what the loader
    handed over: (width, height), (frames, width, height) or (samples, rate).
    """

    tokens: int
    embeds: int
    tensor_bytes: int
    load_s: float
    process_s: float
    sampled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The answer for subject `index`: a cost, or the reason why vLLM refuses the item."""

    index: int
    cost: Cost | None
    refusal: str = ""
    kind: Literal["measured"] = "measured"


@dataclass(frozen=True, slots=True)
class AskBudget:
    """vLLM's own MultiModalBudget for these engine arguments (underscored names).

    `build_dummy` also builds the dummy item that the profile runs, which may take gigabytes.
    """

    engine_args: dict[str, Any]
    build_dummy: bool
    kind: Literal["ask_budget"] = "ask_budget"


@dataclass(frozen=True, slots=True)
class Dummy:
    """The item that vLLM profiles with: its embeds, and its size as the dummy builder made it."""

    embeds: int
    tensor_bytes: int
    size: dict[str, int]


@dataclass(frozen=True, slots=True)
class Budget:
    """Encoder budget in tokens, as vLLM computes it, and what its profile would run.

    Per modality: `max_tokens_per_item`, `max_items_per_prompt`, `max_items_per_batch`. The profile
    runs `profiled_items` of `profiled_modality`; `dummies` holds what each such item costs.
    """

    encoder_compute_budget: int
    encoder_cache_size: int
    max_tokens_per_item: dict[str, int]
    max_items_per_prompt: dict[str, int]
    max_items_per_batch: dict[str, int]
    profiled_modality: str | None
    profiled_items: int
    dummies: dict[str, Dummy]
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    kind: Literal["budget"] = "budget"


@dataclass(frozen=True, slots=True)
class ParseServeConfig:
    """Parse what `vllm serve` would be given: a YAML file, flags, or both (flags win)."""

    path: str | None = None
    flags: tuple[str, ...] = ()
    kind: Literal["parse_serve_config"] = "parse_serve_config"


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Every engine argument that the file sets, as the engine would see it after parsing."""

    engine_args: dict[str, Any]
    kind: Literal["serve_config"] = "serve_config"


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Start the real engine with dummy weights and read its memory from inside.

    `profile` runs vLLM's own profile once more under an allocator trace, unless the estimate says
    that it takes longer than `profile_budget_s`.
    """

    engine_args: dict[str, Any]
    true_layers: tuple[int, int]
    profile_budget_s: float
    kind: Literal["start_engine"] = "start_engine"


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """Figures read from inside the worker; bytes and seconds. None where not measured.

    `*_full_*` figures are scaled to the true depth: computed where the depth was cut. The peak is
    read on the CPU backend only.
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
    kind: Literal["engine_started"] = "engine_started"


@dataclass(frozen=True, slots=True)
class ReplayPrompt:
    """One chat request to answer, and the tokens that its items were measured to cost, in order."""

    origin: str
    messages: list[dict[str, Any]]
    item_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """Submit all prompts at once to the started engine, as one burst."""

    prompts: tuple[ReplayPrompt, ...]
    kind: Literal["replay"] = "replay"


@dataclass(frozen=True, slots=True)
class Answered:
    """How one replayed prompt went: an error, or the item tokens that the engine counted."""

    origin: str
    error: str
    prompt_tokens: int
    item_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """All answers of one burst, the seconds it took, and its largest encoder step in tokens."""

    answers: tuple[Answered, ...]
    seconds: float
    largest_encoder_step_tokens: int
    kind: Literal["replayed"] = "replayed"


@dataclass(frozen=True, slots=True)
class Rehearse:
    """Run vLLM's startup on an imaginary GPU, as far as the size of its KV cache.

    The first one puts the child on that GPU for good: it then answers for no other, and measures
    nothing. `engine_args` has underscored names and the model's folder.
    """

    engine_args: dict[str, Any]
    gpu: Gpu
    kind: Literal["rehearse"] = "rehearse"


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
class Rehearsed:
    """What vLLM's startup would find on that GPU; bytes of one rank.

    `kv_cache_bytes` = requested − weights − buffers − activation peak − non-torch − CUDA graphs;
    below zero the engine would not start. `kv_cache_tokens` and `max_concurrency` are None then,
    and `problem` is vLLM's reason. `buffers_bytes` is what startup keeps beside the weights, with
    the allocator's rounding. Non-torch and CUDA graphs are allowances, as `assumptions` say.
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
    kind: Literal["rehearsed"] = "rehearsed"


@dataclass(frozen=True, slots=True)
class Said:
    """A word on how far the request is: shown beside the progress bar."""

    text: str
    kind: Literal["said"] = "said"


@dataclass(frozen=True, slots=True)
class Done:
    """The request is finished and has no other closing reply."""

    kind: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed; `error` is vLLM's own message on one line, `where` its exception."""

    error: str
    where: str
    kind: Literal["failed"] = "failed"


Request = Annotated[
    OpenModel | Measure | AskBudget | ParseServeConfig | StartEngine | Replay | Rehearse,
    Field(discriminator="kind"),
]
Reply = Annotated[
    ModelOpened
    | Measured
    | Budget
    | ServeConfig
    | EngineStarted
    | Replayed
    | Rehearsed
    | Said
    | Done
    | Failed,
    Field(discriminator="kind"),
]

REQUEST: TypeAdapter[Any] = TypeAdapter(Request)
REPLY: TypeAdapter[Any] = TypeAdapter(Reply)
