"""Requests as the engine core takes them: blank media and made-up text, of the right sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mmcalib.child.media import load
from mmcalib.child.processor import Processor
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Shape
from mmcalib.domain.traffic import TrafficRequest
from mmcalib.engine.messages import Blank
from mmcalib.releases.engine_core import PlacedItem
from mmcalib.releases.processors import apply_processor, create_processor

# Words of made-up text, away from the tokens that tokenizers put first for their own use.
_FIRST_WORD: Final = 300
_WORDS: Final = 700
# Enough words to tell a request's text from all others.
_TELLING: Final = 3


@dataclass(frozen=True, slots=True)
class PlacedPrompt:
    """The tokens of a request and its items in their places."""

    ids: list[int]
    items: Sequence[PlacedItem]


@dataclass(slots=True)
class Prompts:
    """Makes prompts for the model of an engine config; each shape is processed once."""

    config: Any
    _under: Processor = field(init=False)
    _known: dict[Shape, tuple[list[int], Any, Any]] = field(init=False, default_factory=dict)
    _texts: dict[str, int] = field(init=False, default_factory=dict)
    _alone: itertools.count[int] = field(init=False, default_factory=itertools.count)

    def __post_init__(self) -> None:
        model = self.config.model_config
        loading = Setting(media_io_kwargs=model.multimodal_config.media_io_kwargs)
        self._under = Processor(model, create_processor(model), loading)

    def of(self, request: TrafficRequest) -> PlacedPrompt:
        """Text first, then its items. Raises what vLLM raises for an item that it refuses.

        The items of an encoder-decoder model are no part of the prompt: each has its own place, at
        the start.
        """
        apart = self.config.model_config.is_encoder_decoder
        ids = self._text(request)
        items = []
        for item in request.items:
            placeholders, data, position = self._item(item.shape)
            position = replace(position, offset=0 if apart else len(ids))
            items.append(PlacedItem(item.content, item.shape.modality, data, position))
            if not apart:
                ids += placeholders
        return PlacedPrompt(ids, items)

    def _text(self, request: TrafficRequest) -> list[int]:
        text = request.text or f" {next(self._alone)}"
        number = self._texts.setdefault(text, len(self._texts))
        words = [number // _WORDS**place % _WORDS for place in range(_TELLING)]
        words += itertools.repeat(0, max(0, request.text_tokens - _TELLING))
        return [_FIRST_WORD + word for word in words[: max(1, request.text_tokens)]]

    def _item(self, shape: Shape) -> tuple[list[int], Any, Any]:
        """Its placeholder tokens, what the processor made of it, and where those tokens stood."""
        if shape not in self._known:
            media, _ = load(Blank(shape), self._under)
            modality = shape.modality
            done = apply_processor(
                self._under.processor, self._under.placeholder_ids(modality), {modality: [media]}
            )
            place = done["mm_placeholders"][modality][0]
            ids = list(done["prompt_token_ids"])[place.offset : place.offset + place.length]
            self._known[shape] = ids, done["mm_kwargs"][modality][0], place
        return self._known[shape]
