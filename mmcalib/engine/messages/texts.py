"""What the text of a request takes, by the checkpoint's own template and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmcalib.domain.shapes import Modality
from mmcalib.domain.text_bound import TextBound, TextCounting
from mmcalib.engine.messages.message import Repeatable, Reply, Request


@dataclass(frozen=True, slots=True)
class BareRequest:
    """A chat request without media: its messages with a name in place of each, and its other fields
    that bear on the length of the prompt. `items` are how many it names of each modality.
    """

    messages: list[dict[str, Any]]
    fields: dict[str, Any] = field(default_factory=dict)
    items: dict[Modality, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextsCounted(Reply):
    """Tokens per request, and vLLM's words where it refuses one, whose tokens are None."""

    tokens: tuple[int | None, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CountTexts(Repeatable, Request[TextsCounted]):
    """Count what each request takes beside the placeholders of its items."""

    requests: tuple[BareRequest, ...]


@dataclass(frozen=True, slots=True)
class TextsBound(Reply):
    """What was found to bound them."""

    bound: TextBound


@dataclass(frozen=True, slots=True)
class BoundTexts(Repeatable, Request[TextsBound]):
    """Find what bounds the text of any request."""

    modalities: tuple[Modality, ...]


@dataclass(frozen=True, slots=True)
class CountingFound(Reply):
    """None where transformers does not come to vLLM's numbers; `why` says which part is left out,
    too.
    """

    counting: TextCounting | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class FindCounting(Repeatable, Request[CountingFound]):
    """Find how transformers counts texts without vLLM."""

    modalities: tuple[Modality, ...]
