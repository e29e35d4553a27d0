"""What the text of a request takes, by the checkpoint's own template and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmcalib.domain.shapes import Modality
from mmcalib.domain.text_bound import TextBound
from mmcalib.engine.messages.message import Repeatable, Reply, Request
from mmcalib.texts.recipe import TextRecipe


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
    """Tokens per request, and vLLM's words where it refuses one, whose tokens are None. Of them
    `compared` were counted by the recipe too, if one was found; `differs` says how one came to
    another number.
    """

    tokens: tuple[int | None, ...]
    refusals: tuple[str, ...]
    compared: int = 0
    differs: str = ""


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
class RecipeFound(Reply):
    """None where there is no such way, or not all of it came to vLLM's numbers: `why` says which
    part is left out, too.
    """

    recipe: TextRecipe | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class FindRecipe(Repeatable, Request[RecipeFound]):
    """Find how texts can be counted without vLLM."""

    modalities: tuple[Modality, ...]
