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
    are those of all arguments of `vllm serve`, its defaults among them.
    """

    engine_args: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
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
    what became of the prompts that were admitted only.
    """

    answers: tuple[Answered, ...]
    seconds: float
    largest_encoder_step_tokens: int
    admitted: tuple[Answered, ...] = ()
    kind: Literal["replayed"] = "replayed"
