"""Requests as they come, and what serving them took, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mmcalib.domain.memory import LiveTensor
from mmcalib.domain.shapes import Modality, Shape

# What stands for an answer of which nothing is said, and for the time of a step. Choices, not
# measurements.
ANSWER_TOKENS: Final = 256
STEP_S: Final = 0.05


# Token ids of the text, and the modality of an item where its placeholder goes.
SplitPrompt = tuple[tuple[int, ...] | Modality, ...]


@dataclass(frozen=True, slots=True)
class TrafficItem:
    """One medium of a request. What has equal `content` is one item to every cache."""

    shape: Shape
    content: str


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """One request: `text_tokens` beside its items' placeholders, `answer_tokens` to be made,
    `sent_s` seconds after the first. Without a `prompt`, tokens like no other request's come before
    its items.
    """

    origin: str
    text_tokens: int
    answer_tokens: int
    items: tuple[TrafficItem, ...] = ()
    prompt: SplitPrompt = ()
    sent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in their order, what they do not say, and how many name no answer length."""

    requests: tuple[TrafficRequest, ...]
    assumptions: tuple[str, ...]
    unsaid: int = 0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """All at once; `concurrency` under way at a time; `rate` a second; or `timed`, when they were
    sent. A step of the engine takes `step_s` seconds, which is assumed.
    """

    concurrency: int | None = None
    rate: float | None = None
    step_s: float = STEP_S
    timed: bool = False

    @property
    def by_the_clock(self) -> bool:
        """Whether it takes a clock to say which have come."""
        return self.timed or self.rate is not None


@dataclass(frozen=True, slots=True)
class TrafficStep:
    """One step of the engine, as vLLM's scheduler decided it and as its memory went.

    Requests: `new` ones, all `scheduled` ones, those `waiting` and `preempted`, and those that the
    encoder or its cache `held_up`. `tokens` of the language model; `encoded` items of
    `encoder_tokens`, and `evicted` ones. The encoder cache counts `cache_tokens`; its tensors are
    `logical_bytes` of storages of `alive_bytes`. `kv_blocks` are in use. `peak_bytes` and
    `held_bytes` are the most and the last above the loaded model; None where nobody kept the books.
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
    peak_bytes: int | None = None
    held_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HighestStep:
    """The step that took most: its number, the requests that it ran, those of them whose items it
    encoded, and the largest tensors at its peak.
    """

    number: int
    origins: tuple[str, ...]
    encoding: tuple[str, ...]
    largest: tuple[LiveTensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Traffic:
    """What serving requests took. Bytes are above the loaded model with its KV cache; `reserved` is
    the profile's peak there. `refused` are requests that vLLM would not take, with the reason.
    `cached_tokens` of prompts were found in the prefix cache, `reused` items in the encoder's.
    """

    steps: tuple[TrafficStep, ...]
    highest: HighestStep | None
    refused: tuple[tuple[str, str], ...]
    kv_blocks: int
    cache_tokens: int
    reused: int
    cached_tokens: int
    reserved_bytes: int | None
    seconds: float
