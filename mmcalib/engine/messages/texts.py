"""What the text of a request takes, by the checkpoint's own template and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mmcalib.census.asked import Asked
from mmcalib.census.shapes import Modality
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
class CountTexts:
    """Count what each request takes beside the placeholders of its items; answered by one
    `TextsCounted`.
    """

    requests: tuple[BareRequest, ...]
    kind: Literal["count_texts"] = "count_texts"


@dataclass(frozen=True, slots=True)
class TextsCounted:
    """Tokens per request, and vLLM's words where it refuses one, whose tokens are None. Of them
    `compared` were counted by the recipe too, if one was found; `differs` says how one came to
    another number.
    """

    tokens: tuple[int | None, ...]
    refusals: tuple[str, ...]
    compared: int = 0
    differs: str = ""
    kind: Literal["texts_counted"] = "texts_counted"


@dataclass(frozen=True, slots=True)
class BoundTexts:
    """Find what bounds the text of any request; answered by one `TextBound`."""

    modalities: tuple[Modality, ...]
    kind: Literal["bound_texts"] = "bound_texts"


@dataclass(frozen=True, slots=True)
class FindRecipe:
    """Find how texts can be counted without vLLM; answered by one `RecipeFound`."""

    modalities: tuple[Modality, ...]
    kind: Literal["find_recipe"] = "find_recipe"


@dataclass(frozen=True, slots=True)
class RecipeFound:
    """None where there is no such way, or not all of it came to vLLM's numbers: `why` says which
    part is left out, too.
    """

    recipe: TextRecipe | None
    why: str = ""
    kind: Literal["recipe_found"] = "recipe_found"


@dataclass(frozen=True, slots=True)
class TextBound:
    """The most tokens that a text takes: `tokens_per_byte`, and around it those of the template:
    once, per message, per item and, None where they are not bounded, of tools beside their JSON.

    It was at least what vLLM's renderer made of each of `compared` requests; 0: there is no bound,
    `why` says the reason.
    """

    base_tokens: int = 0
    message_tokens: int = 0
    item_tokens: dict[Modality, int] = field(default_factory=dict)
    tools_tokens: int | None = None
    tokens_per_byte: int = 1
    compared: int = 0
    why: str = ""
    kind: Literal["text_bound"] = "text_bound"

    def most(self, asked: Asked, items: Mapping[Modality, int]) -> int | None:
        """Tokens of a request beside the placeholders of its items, of which it has so many; None
        where nothing bounds them.
        """
        if not asked.plain or (asked.tool_bytes and self.tools_tokens is None):
            return None
        total = self.base_tokens + self.message_tokens * asked.messages
        total += self.tokens_per_byte * (asked.text_bytes + asked.tool_bytes)
        total += (self.tools_tokens or 0) if asked.tool_bytes else 0
        for modality, count in items.items():
            if count and modality not in self.item_tokens:
                return None
            total += count * self.item_tokens.get(modality, 0)
        return total
