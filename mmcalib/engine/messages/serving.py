"""Configuration files, the real engine, and prompts that it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmcalib.domain.worker_memory import WorkerMemory
from mmcalib.engine.messages.message import Reply, Request


@dataclass(frozen=True, slots=True)
class ServeConfig(Reply):
    """Every engine argument that the file sets, as the engine would see it after parsing; `values`
    are those of all arguments of `vllm serve`, its defaults among them. `reaching` are settings of
    the file, and not of the user, that import or run what they name, write or connect. `server`
    are the arguments of the API server alone that file or flags set.
    """

    engine_args: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    reaching: tuple[str, ...] = ()
    server: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParseServeConfig(Request[ServeConfig]):
    """Parse what `vllm serve` would be given: a YAML file, flags, or both (flags win). `written`
    are flags that a file of another form holds: the user's own go behind them.
    """

    path: str | None = None
    flags: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeOptions(Reply):
    """Each option of `vllm serve` as it is spelled, without its dashes in front, and the name of
    the argument that it sets; and the names of all arguments of the engine.
    """

    arguments: dict[str, str]
    engine: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListServeOptions(Request[ServeOptions]):
    """Which options `vllm serve` has."""


@dataclass(frozen=True, slots=True)
class EngineStarted(Reply):
    """Figures read from inside the worker; bytes and seconds. None where not measured.

    `*_full_*` figures are scaled to the true depth: computed where the depth was cut. `gpu` is
    None on the CPU backend, where the peak is traced; elsewhere the peak is the worker's own.
    `computed_in` is the type that stood in for one that this CPU does not compute in.
    `most_step_tokens` is what one step of the encoder may have in the memory that is free here;
    None where that is all that vLLM profiles.
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


@dataclass(frozen=True, slots=True)
class StartEngine(Request[EngineStarted]):
    """Start the real engine with dummy weights and read its memory from inside.

    vLLM's own profile runs once more under an allocator trace, unless the estimate says that it
    takes longer than `profile_budget_s`. Where that is None it runs only where nothing else tells
    how long the encoder takes.
    """

    engine_args: dict[str, Any]
    true_layers: tuple[int, int]
    profile_budget_s: float | None


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
class Answered:
    """How one replayed prompt went: an error, for want of memory or not, or the item tokens that
    the engine counted.
    """

    origin: str
    error: str
    prompt_tokens: int
    item_tokens: tuple[int, ...]
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Replayed(Reply):
    """All answers of one burst, the seconds it took, and its largest encoder step in tokens; and
    what became of the prompts that were admitted only. `peak_bytes` is the most that torch held on
    a GPU above what it held before; None without one.
    """

    answers: tuple[Answered, ...]
    seconds: float
    largest_encoder_step_tokens: int
    admitted: tuple[Answered, ...] = ()
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Replay(Request[Replayed]):
    """Submit all prompts at once to the started engine, as one burst. Those to `admit` only go
    through its input processing before, and are not answered.
    """

    prompts: tuple[ReplayPrompt, ...]
    admit: tuple[ReplayPrompt, ...] = ()
