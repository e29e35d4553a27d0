"""Whether the covered prompts fit the context (R5), on the prompts as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mmcalib.census.shapes import Shape


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The item tokens of one kind of prompt, without its text."""

    origin: str
    count: int
    item_tokens: int


@dataclass(frozen=True, slots=True)
class Fit:
    """The longest prompt with the reserve for text, against the context; all in tokens."""

    longest: PromptTokens
    reserve_tokens: int
    max_model_len: int
    prompts_too_long: int

    @property
    def needed_tokens(self) -> int:
        return self.longest.item_tokens + self.reserve_tokens

    @property
    def passes(self) -> bool:
        return self.prompts_too_long == 0


def prompt_tokens(
    origin: str, count: int, shapes: Iterable[Shape], tokens: Mapping[Shape, int]
) -> PromptTokens | None:
    """None where an item has no cost: vLLM refuses it, or the model does not take its modality."""
    total = 0
    for shape in shapes:
        if shape not in tokens:
            return None
        total += tokens[shape]
    return PromptTokens(origin, count, total)


def fit(prompts: Iterable[PromptTokens], reserve_tokens: int, max_model_len: int) -> Fit | None:
    """None when there are no prompts to fit."""
    longest, too_long = None, 0
    for prompt in prompts:
        if longest is None or prompt.item_tokens > longest.item_tokens:
            longest = prompt
        if prompt.item_tokens + reserve_tokens > max_model_len:
            too_long += prompt.count
    if longest is None:
        return None
    return Fit(longest, reserve_tokens, max_model_len, too_long)
