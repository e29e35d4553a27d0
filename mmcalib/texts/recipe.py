"""How vLLM makes a prompt of a chat request, as far as it must be known to count its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mmcalib.domain.shapes import Modality

# How templates get the content of a message: as its parts, or as one text.
Content = Literal["openai", "string"]


class Uncounted(ValueError):  # noqa: N818 - a value in flight: the text stays bounded
    """The text cannot be counted here; the message says why."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Jinja, as vLLM resolved it."""

    text: str
    content: Content


@dataclass(frozen=True, slots=True)
class TextRecipe:
    """`template` is for requests without tools, `tools_template` for those with, None where it is
    not as vLLM's; `special` are the tokens that both may name. `files` are those of the checkpoint
    that bear on it, by their digests, and `pipeline` what transformers puts in place of parts of
    its tokenizer.json.

    An item of a modality adds `grown` tokens beside its placeholder, those that gave way to it
    counting against it; modalities that are not there cannot be counted. For a template of strings
    `placeholders` are put before the text. All of it agreed with vLLM's renderer on each of
    `compared` requests.
    """

    template: ChatTemplate
    tools_template: ChatTemplate | None
    special: Mapping[str, str]
    files: Mapping[str, str]
    pipeline: Mapping[str, Any] = field(default_factory=dict)
    placeholders: Mapping[Modality, str] = field(default_factory=dict)
    grown: Mapping[Modality, int] = field(default_factory=dict)
    compared: int = 0
