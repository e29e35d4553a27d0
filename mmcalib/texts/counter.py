"""Counting the text of requests by a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcalib.corpus.asking import is_plain
from mmcalib.domain.shapes import Modality
from mmcalib.texts import tokenizer as files
from mmcalib.texts.recipe import TextRecipe, Uncounted
from mmcalib.texts.template import TemplateRenderer
from mmcalib.texts.turns import conversation, described

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextCounter:
    """By a tokenizer that is the recipe's."""

    def __init__(self, recipe: TextRecipe, tokenizer: Tokenizer) -> None:
        self._recipe, self._tokenizer = recipe, tokenizer

    @classmethod
    def at(cls, folder: Path, recipe: TextRecipe) -> TextCounter:
        """With the tokenizer of the checkpoint in that folder, whose files must be as the recipe
        knew them. Raises `Uncounted` where they are not, and ImportError without the package
        `tokenizers`.
        """
        if files.digests(folder) != dict(recipe.files):
            raise Uncounted("its tokenizer or template is not the one that was calibrated with")
        return cls(recipe, files.opened(folder, recipe.pipeline))

    def count(
        self,
        messages: Sequence[Mapping[str, Any]],
        fields: Mapping[str, Any],
        items: Mapping[Modality, int],
    ) -> int:
        """Tokens of the prompt that are not within the placeholder of an item, as vLLM's renderer
        makes it. Raises `Uncounted`.
        """
        grown = self._recipe.grown
        if missing := [m for m, count in items.items() if count and m not in grown]:
            raise Uncounted(f"what {missing[0]} items add to a text is not known")
        tokens = self.tokens(self.prompt(messages, fields))
        return tokens + sum(grown[m] * count for m, count in items.items() if count)

    def prompt(self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> str:
        """Before items take the places of what stands for them. Raises `Uncounted`."""
        if not is_plain(fields):
            raise Uncounted("it gives the template more than messages and tools")
        tools = described(fields.get("tools"))
        renderer = self._plain if tools is None else self._with_tools
        turns = conversation(messages, renderer.content, self._recipe.placeholders)
        return renderer.prompt(turns, tools, {})

    def tokens(self, prompt: str) -> int:
        return len(self._tokenizer.encode(prompt, add_special_tokens=False).ids)

    @cached_property
    def _plain(self) -> TemplateRenderer:
        return TemplateRenderer(self._recipe.template, self._recipe.special)

    @cached_property
    def _with_tools(self) -> TemplateRenderer:
        template = self._recipe.tools_template
        if template is None:
            raise Uncounted("tools")
        return TemplateRenderer(template, self._recipe.special)
