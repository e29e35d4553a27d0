"""What a request's text takes: vLLM's own renderer, on requests whose media are not loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcalib.child import trials
from mmcalib.child.exception_words import refusal_of
from mmcalib.child.media import load
from mmcalib.child.text_counter import TextCounter, Uncounted
from mmcalib.domain.items import TextCounting
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.messages import BareRequest, Blank, CountingFound, CountTexts, TextsCounted
from mmcalib.releases import chat, processors

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel

# Small enough to cost nothing, and taken by every processor.
_SMALL: dict[Modality, Shape] = {
    "image": ImageShape(64, 64),
    "video": VideoShape(4, 2.0, 2.0, 64, 64),
    "audio": AudioShape(16_000, 16_000),
}


class TextRenderer:
    """The renderer of a server of this model."""

    def __init__(self, model: OpenedModel) -> None:
        self._model = model
        self.renderer = chat.renderer(model.engine_config())
        self._media: dict[Modality, Any] = {}

    @property
    def tokenizer(self) -> Any:
        return self.renderer.get_tokenizer()

    @property
    def folder(self) -> Path:
        """Where its files lie: what is opened here is a folder."""
        return Path(self._model.config.tokenizer)

    def rendered(self, request: BareRequest) -> tuple[str, list[int]]:
        """The prompt as the template writes it, and its tokens before placeholders grow. Raises
        vLLM's own errors.
        """
        return chat.rendered(self.renderer, request.messages, request.fields)

    def count(self, request: BareRequest) -> int:
        """Tokens of the prompt that are not within the placeholder of an item."""
        _, ids = self.rendered(request)
        return len(ids) + self.grown(ids, request.items)

    def grown(self, ids: list[int], items: dict[Modality, int]) -> int:
        """By how much the prompt grows beside the placeholders when items take their places: less
        than nothing where a token stood for each.
        """
        if not any(items.values()) or self._model.config.is_encoder_decoder:
            return 0
        under = self._model.under(DEFAULT)
        media = {m: [self._small(m)] * n for m, n in items.items() if n}
        output = processors.apply_processor(under.processor, list(ids), media)
        held = sum(p.length for places in output["mm_placeholders"].values() for p in places)
        grown: int = len(output["prompt_token_ids"]) - held - len(ids)
        return grown

    def _small(self, modality: Modality) -> Any:
        if modality not in self._media:
            blank = Blank(_SMALL[modality])
            self._media[modality], _ = load(blank, self._model.under(DEFAULT))
        return self._media[modality]


def count_texts(texts: TextRenderer, request: CountTexts) -> TextsCounted:
    """Every request in order; one that vLLM refuses is answered with its words."""
    tokens: list[int | None] = []
    refusals = []
    for one in request.requests:
        try:
            tokens.append(texts.count(one))
            refusals.append("")
        except Exception as error:  # noqa: BLE001 - the refusal is the answer
            tokens.append(None)
            refusals.append(refusal_of(error))
    return TextsCounted(tuple(tokens), tuple(refusals))


def find_counting(texts: TextRenderer, modalities: Sequence[Modality]) -> CountingFound:
    """What agrees with vLLM on all that is tried; without a modality where that alone does not."""
    left_out = []
    try:
        counter = TextCounter(str(texts.folder))
        plain = (trials.ONE, *trials.conversations(), *trials.worded())
        found = _agreeing(texts, counter, TextCounting(chat.content_format(texts.renderer)), plain)
    except Exception as error:  # noqa: BLE001 - no template, or a tokenizer of its own kind
        return CountingFound(None, " ".join(str(error).split())[:200] or type(error).__name__)
    for modality in modalities:
        one = trials.with_items(modality, 1)
        try:
            around = {**found.around, modality: texts.grown(texts.rendered(one)[1], one.items)}
            found = _agreeing(
                texts, counter, replace(found, around=around), trials.around_items(modality)
            )
        except Exception as error:  # noqa: BLE001 - it is not as vLLM's: it is left out
            left_out.append(f"{modality} items: {error}")
    if len(found.around) > 1:
        try:
            found = _agreeing(texts, counter, found, trials.mixed(tuple(found.around)))
        except ValueError as error:
            found = replace(found, around={})
            left_out.append(f"items: {error}")
    return CountingFound(found, " ".join("; ".join(left_out).split())[:200])


def _agreeing(
    texts: TextRenderer, counter: TextCounter, found: TextCounting, tried: Iterable[BareRequest]
) -> TextCounting:
    """With what was compared. Raises ValueError where one is counted otherwise, or none is."""
    compared, why = 0, ""
    for one in tried:
        try:
            # Before vLLM, which changes messages that it is given.
            ours = counter.count(found, one.messages, one.fields, one.items)
        except Uncounted as error:
            why = why or str(error)
            continue
        try:
            theirs = texts.count(one)
        except Exception:  # noqa: BLE001, S112 - templates refuse some orders of turns
            continue
        if ours != theirs:
            raise ValueError(f"{ours} tokens for a text of which vLLM makes {theirs}")
        compared += 1
    if not compared:
        raise ValueError(why or "vLLM refuses all that was tried")
    return replace(found, compared=found.compared + compared)
