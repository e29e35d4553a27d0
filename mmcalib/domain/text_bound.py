"""What bounds the tokens of a request's text, and what counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mmcalib.domain.asked import Asked
from mmcalib.domain.shapes import Modality


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


@dataclass(frozen=True, slots=True)
class TextCounting:
    """With what transformers comes to vLLM's number of tokens of a text: templates get the
    `content` of a message as its parts or as one text, and an item adds the tokens in `around` it
    to those of its placeholder, which may be less than none. Modalities that are not there cannot
    be counted. It agreed with vLLM's renderer on each of `compared` requests.
    """

    content: Literal["openai", "string"]
    around: dict[Modality, int] = field(default_factory=dict)
    compared: int = 0
