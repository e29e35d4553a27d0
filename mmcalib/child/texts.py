"""What a request's text takes: vLLM's own renderer, on requests whose media are not loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcalib.child.exception_words import refusal_of
from mmcalib.child.media import load
from mmcalib.domain.setting import DEFAULT
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.messages import BareRequest, Blank, CountTexts, TextsCounted
from mmcalib.releases import chat, processors
from mmcalib.texts.recipe import Uncounted

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel
    from mmcalib.texts.counter import TextCounter

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
        # Once the recipe was found, what counts by it.
        self.counter: TextCounter | None = None

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
    compared, differs = 0, ""
    for one in request.requests:
        # Before vLLM, which changes messages that it is given.
        ours = recount(texts, one)
        try:
            tokens.append(texts.count(one))
            refusals.append("")
        except Exception as error:  # noqa: BLE001 - the refusal is the answer
            tokens.append(None)
            refusals.append(refusal_of(error))
            continue
        if ours is not None:
            compared += 1
            if ours != tokens[-1]:
                differs = differs or f"{ours} tokens for a text of which vLLM makes {tokens[-1]}"
    return TextsCounted(tuple(tokens), tuple(refusals), compared, differs)


def recount(texts: TextRenderer, one: BareRequest) -> int | None:
    """What the recipe makes of it, None where it does not count it."""
    if texts.counter is None:
        return None
    try:
        return texts.counter.count(one.messages, one.fields, one.items)
    except Uncounted:
        return None
