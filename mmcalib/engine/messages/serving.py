"""Configuration files, the real engine, and prompts that it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ParseServeConfig:
    """Parse what `vllm serve` would be given: a YAML file, flags, or both (flags win)."""

    path: str | None = None
    flags: tuple[str, ...] = ()
    kind: Literal["parse_serve_config"] = "parse_serve_config"


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Every engine argument that the file sets, as the engine would see it after parsing; `values`
    are those of all arguments of `vllm serve`, its defaults among them. `reaching` are settings of
    the file, and not of the flags, that import or run what they name, write or connect.
    """

    engine_args: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    reaching: tuple[str, ...] = ()
    kind: Literal["serve_config"] = "serve_config"


@dataclass(frozen=True, slots=True)
class ListServeOptions:
    """Which options `vllm serve` has."""

    kind: Literal["list_serve_options"] = "list_serve_options"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Each option of `vllm serve` as it is spelled, without its dashes in front, and the name of
    the argument that it sets.
    """

    arguments: dict[str, str]
    kind: Literal["serve_options"] = "serve_options"


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


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """Figures read from inside the worker; bytes and seconds. None where not measured.

    `*_full_*` figures are scaled to the true depth: computed where the depth was cut. `gpu` is
    None on the CPU backend, where the peak is traced; elsewhere the peak is the worker's own.
    `computed_in` is the type that stood in for one that this CPU does not compute in.
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
    gpu: WorkerMemory | None = None
    kind: Literal["engine_started"] = "engine_started"


@dataclass(frozen=True, slots=True)
class ReplayPrompt:
    """One chat request to answer, and the tokens that its items were measured to cost, in order.
    `fields` are its other fields that bear on its length.
    """

    origin: str
    messages: list[dict[str, Any]]
    item_tokens: tuple[int, ...]
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replay:
    """Submit all prompts at once to the started engine, as one burst. Those to `admit` only go
    through its input processing before, and are not answered.
    """

    prompts: tuple[ReplayPrompt, ...]
    admit: tuple[ReplayPrompt, ...] = ()
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
    """All answers of one burst, the seconds it took, and its largest encoder step in tokens; and
    what became of the prompts that were admitted only. `peak_bytes` is the most that torch held on
    a GPU above what it held before; None without one.
    """

    answers: tuple[Answered, ...]
    seconds: float
    largest_encoder_step_tokens: int
    admitted: tuple[Answered, ...] = ()
    peak_bytes: int | None = None
    kind: Literal["replayed"] = "replayed"
