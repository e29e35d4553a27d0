"""Requests by arrival, the memory of serving them, and answers to a burst."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mmcalib.domain.memory import LiveTensor
from mmcalib.domain.shapes import Modality, Shape

# Assumed time of a step.
STEP_S: Final = 0.05

# Token ids of the text, and the modality of an item where its placeholder goes.
SplitPrompt = tuple[tuple[int, ...] | Modality, ...]


@dataclass(frozen=True, slots=True)
class TrafficItem:
    """One item of a request. Every cache treats equal `content` as the same item."""

    shape: Shape
    content: str


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """One request: `text_tokens` besides its items' placeholders, `answer_tokens` to generate,
    `sent_s` seconds after the first. Without a `prompt` unique tokens come before its items.
    """

    origin: str
    text_tokens: int
    answer_tokens: int
    items: tuple[TrafficItem, ...] = ()
    prompt: SplitPrompt = ()
    sent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order, and assumptions: `no_answer_length` of them assume `answer_tokens`."""

    requests: tuple[TrafficRequest, ...]
    assumptions: tuple[str, ...]
    no_answer_length: int = 0
    answer_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When requests arrive: all at once; `concurrency` at a time; `rate` a second; or `timed`, at
    the times in the file. A step of the engine takes `step_s` seconds, which is assumed.
    """

    concurrency: int | None = None
    rate: float | None = None
    step_s: float = STEP_S
    timed: bool = False

    @property
    def needs_clock(self) -> bool:
        """Arrivals depend on a clock."""
        return self.timed or self.rate is not None


@dataclass(frozen=True, slots=True)
class TrafficStep:
    """One step of the engine: decisions of vLLM's scheduler, and memory.

    Requests: `new` ones, all `scheduled` ones, those `waiting` and `preempted`, and those that the
    encoder or its cache `held_up`. `tokens` of the language model; `encoded` items of
    `encoder_tokens`, and `evicted` ones. The encoder cache counts `cache_tokens`; its tensors are
    `logical_bytes` of storages of `alive_bytes`. `kv_blocks` are in use. `peak_bytes` and
    `held_bytes` are the highest and the last above the loaded model.
    """

    new: int
    scheduled: int
    waiting: int
    preempted: int
    held_up: int
    tokens: int
    encoded: int
    encoder_tokens: int
    evicted: int
    finished: int
    cache_tokens: int
    logical_bytes: int
    alive_bytes: int
    kv_blocks: int
    peak_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class HighestStep:
    """The step with the highest peak: its number, the requests it ran, those whose items it
    encoded, the largest tensors at its peak, and the peak as in `TrafficStep`.
    """

    number: int
    origins: tuple[str, ...]
    encoding: tuple[str, ...]
    largest: tuple[LiveTensor, ...] = ()
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Memory of serving requests. Bytes are above the loaded model with its KV cache; `reserved` is
    the profile's peak there. `refused` are requests that vLLM rejected, with the reason.
    The prefix cache had `cached_tokens` of prompts, and the encoder cache had `reused_items`.
    """

    steps: tuple[TrafficStep, ...]
    highest: HighestStep | None
    refused: tuple[tuple[str, str], ...]
    kv_blocks: int
    cache_tokens: int
    reused_items: int
    cached_tokens: int
    reserved_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """The outcome of one replayed prompt: its error, if any, and the engine's item tokens."""

    origin: str
    error: str
    item_tokens: tuple[int, ...]
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class BurstResult:
    """Outcomes of one burst's prompts; those in `admitted` were admitted only."""

    answers: tuple[PromptOutcome, ...]
    seconds: float
    largest_encoder_step_tokens: int
    admitted: tuple[PromptOutcome, ...] = ()
    # torch's peak above its start; None without a GPU.
    peak_bytes: int | None = None

    @property
    def outcomes(self) -> tuple[PromptOutcome, ...]:
        return (*self.answers, *self.admitted)

    @property
    def rejected(self) -> list[str]:
        """Prompts that the engine rejected or did not answer, with its error."""
        return [f"{one.origin}: {one.error}" for one in self.outcomes if one.error]
