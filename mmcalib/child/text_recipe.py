"""Finding how texts can be counted without vLLM, and holding that against vLLM's own renderer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mmcalib.child import trials
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import BareRequest, RecipeFound
from mmcalib.releases import chat
from mmcalib.texts import tokenizer as files
from mmcalib.texts.counter import TextCounter
from mmcalib.texts.recipe import ChatTemplate, TextRecipe, Uncounted

if TYPE_CHECKING:
    from mmcalib.child.texts import TextRenderer


def find_recipe(texts: TextRenderer, modalities: Sequence[Modality]) -> RecipeFound:
    """What agrees with vLLM on all that is tried; without tools, or a modality, where that part
    alone does not.
    """
    try:
        trial = _Trial(texts)
    except Exception as error:  # noqa: BLE001 - no template, or a tokenizer of its own kind
        return RecipeFound(None, " ".join(str(error).split())[:200] or type(error).__name__)
    parts: list[tuple[str, Callable[[], None]]] = [
        *((f"{m} items", partial(trial.add_items, m)) for m in modalities),
        ("items", trial.mix_items),
        ("tools", trial.add_tools),
    ]
    left_out = []
    for name, add in parts:
        try:
            add()
        except Exception as error:  # noqa: BLE001 - it is not as vLLM's: this part is left out
            left_out.append(f"{name}: {error}")
    texts.counter = TextCounter(trial.recipe, trial.tokenizer)
    return RecipeFound(trial.recipe, " ".join("; ".join(left_out).split())[:200])


class _Trial:
    """A recipe as far as it agrees with vLLM. Raises ValueError where a plain text does not."""

    def __init__(self, texts: TextRenderer) -> None:
        self._texts = texts
        backend = getattr(texts.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError("its tokenizer is not one of the tokenizers package")
        special = texts.tokenizer.special_tokens_map
        recipe = TextRecipe(
            template=ChatTemplate(*chat.template(texts.renderer, None)),
            tools_template=None,
            special={name: str(token) for name, token in special.items()},
            files=files.digests(texts.folder),
            pipeline=files.differences(texts.folder, backend.to_str()),
        )
        self.tokenizer = files.opened(texts.folder, recipe.pipeline)
        plain = (trials.ONE, *trials.conversations(), *trials.worded(), *trials.unusual())
        self.recipe = self._agreeing(recipe, plain)

    def add_items(self, modality: Modality) -> None:
        recipe, one = self.recipe, trials.with_items(modality, 1)
        placeholder = chat.placeholder(self._texts.renderer, modality)
        if placeholder is not None:
            recipe = replace(recipe, placeholders={**recipe.placeholders, modality: placeholder})
        grown = self._texts.grown(self._texts.rendered(one)[1], one.items)
        recipe = replace(recipe, grown={**recipe.grown, modality: grown})
        self.recipe = self._agreeing(recipe, trials.around_items(modality))

    def mix_items(self) -> None:
        """Without any where those of several modalities are counted otherwise together."""
        known, kinds = self.recipe, tuple(self.recipe.grown)
        if len(kinds) > 1:
            self.recipe = replace(known, grown={})
            self.recipe = self._agreeing(known, trials.mixed(kinds))

    def add_tools(self) -> None:
        tooled = list(trials.tooled())
        template = ChatTemplate(*chat.template(self._texts.renderer, tooled[0].fields["tools"]))
        self.recipe = self._agreeing(replace(self.recipe, tools_template=template), tooled)

    def _agreeing(self, recipe: TextRecipe, tried: Iterable[BareRequest]) -> TextRecipe:
        """With what was compared. Raises ValueError at the first prompt that differs."""
        counter, compared, why = TextCounter(recipe, self.tokenizer), 0, ""
        for request in tried:
            try:
                # Before vLLM, which changes messages that it is given.
                ours = counter.prompt(request.messages, request.fields)
                tokens = counter.count(request.messages, request.fields, request.items)
            except Uncounted as error:
                why = why or str(error)
                continue
            try:
                theirs, ids = self._texts.rendered(request)
                counted = len(ids) + self._texts.grown(ids, request.items)
            except Exception:  # noqa: BLE001, S112 - templates refuse some orders of turns
                continue
            if ours != theirs:
                raise ValueError("its template, rendered without vLLM, writes another prompt")
            if tokens != counted:
                raise ValueError(f"{tokens} tokens for a text of which vLLM makes {counted}")
            compared += 1
        if not compared:
            raise ValueError(why or "vLLM refuses all that was tried")
        return replace(recipe, compared=recipe.compared + compared)
