"""What items cost under the calibrated configuration, as `calibration.json` keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, FailFast, Field, ValidationError

from mmcalib.derive.admission import Gate, Known
from mmcalib.derive.bounds import Area, Ceiling, Frames, Ladder
from mmcalib.domain.items import TextBound, TextCounting
from mmcalib.domain.model import Server
from mmcalib.domain.shapes import MODALITIES, AudioShape, ImageShape, Modality, VideoShape
from mmcalib.errors import UsageError
from mmcalib.results.part import POSITIVE, DocumentPart

# Each has fields that the next lacks, so that the first that matches is meant.
_AnyShape = Annotated[
    VideoShape | AudioShape | ImageShape, Field(union_mode="left_to_right"), POSITIVE
]
_AnyRule = Annotated[Area | Ceiling | Frames | Ladder, Field(discriminator="kind"), POSITIVE]


class KnownCost(DocumentPart):
    """Tokens in the prompt and embeds in the encoder cache of every item of a shape, measured or,
    as `counted`, by vLLM's own count of its size, which agreed with all that were measured.

    `items` have the shape, None in files of earlier versions. `exemplar` is the path of one, kept
    of the costliest shapes only.
    """

    shape: _AnyShape
    tokens: int
    embeds: int
    basis: Literal["real", "blank", "counted"]
    items: int | None = None
    exemplar: str = ""


class RefusedShape(DocumentPart):
    """vLLM refuses every item of the shape, in its own words."""

    shape: _AnyShape
    reason: str


class TokensBetween(DocumentPart):
    """How many shapes, and items of them, cost so many tokens."""

    least_tokens: int
    most_tokens: int
    shapes: int
    items: int


class SizesAbout(DocumentPart):
    """How many shapes have about one size, and which of them costs most."""

    width_px: int
    height_px: int
    tokens: int
    shapes: int


class Unlisted(DocumentPart):
    """Shapes of the corpus that are not listed, because the rule says to the token what they cost,
    or because they are so many that it bounds it: in bins and cells of a third of an octave.
    """

    shapes: int
    items: int
    tokens: list[TokensBetween]
    sizes: list[SizesAbout]


class ModalityCosts(DocumentPart):
    """`rule` bounds unseen shapes; it reproduced all of `compared` shapes. None: unknown. `known`
    has all shapes of the corpus but the `unlisted`, for which the rule stands.
    """

    known: Annotated[list[KnownCost], FailFast()]
    refused: Annotated[list[RefusedShape], FailFast()]
    rule: _AnyRule | None = None
    compared: int = 0
    unlisted: Unlisted | None = None


class CountedText(DocumentPart):
    """A request by the digest of all but its media, and the tokens of its text, as counted."""

    digest: str
    tokens: int


class TextCost(DocumentPart):
    """What bounds the tokens of a request's text: so many per byte of UTF-8, and around it those of
    the chat template, once, per message, per item and of tools beside their JSON. It was at least
    what vLLM's renderer made of each of `compared` requests. `counted` are requests of the corpus
    that it did not settle.
    """

    base_tokens: int
    message_tokens: int
    item_tokens: dict[Modality, int]
    tools_tokens: int | None = None
    tokens_per_byte: int = 1
    compared: int
    counted: Annotated[list[CountedText], FailFast()] = Field(default_factory=list)

    @property
    def bound(self) -> TextBound:
        return TextBound(
            base_tokens=self.base_tokens,
            message_tokens=self.message_tokens,
            item_tokens=self.item_tokens,
            tools_tokens=self.tools_tokens,
            tokens_per_byte=self.tokens_per_byte,
            compared=self.compared,
        )


class Costs(DocumentPart):
    """By modality; those that the model takes and the corpus lacks are not there. `text` is None
    where nothing bounds it, and in files of earlier versions. By `counting` texts that the bound
    does not settle are counted, without vLLM; `uncounted` says why none are, or which are not. With
    `encoder_decoder` items are no part of the context.
    """

    text_reserve_tokens: int
    modalities: dict[str, ModalityCosts]
    text: TextCost | None = None
    counting: TextCounting | None = None
    uncounted: str = ""
    encoder_decoder: bool = False
    label: Literal["measured"] = "measured"


def gate_of(
    costs: Costs, engine_config: Mapping[str, Any], budget_tokens: int, server: Server | None = None
) -> Gate:
    """What an engine of this configuration admits. All modalities that it takes must be limited.
    Without a `server` nothing is known of what it lets in.

    Raises UsageError where it says no such thing.
    """
    try:
        served = _Served.model_validate(engine_config)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"the calibration's engine_config says nothing of use: {where}: {first['msg']}",
            hint="mmcalib run writes one that does",
        ) from error
    limits = served.limit_mm_per_prompt
    parts = [(m, costs.modalities[m]) for m in MODALITIES if m in costs.modalities]
    return Gate(
        budget_tokens=budget_tokens,
        max_model_len=served.max_model_len,
        text_reserve_tokens=costs.text_reserve_tokens,
        counts={m: _count(limits[m]) for m in MODALITIES if m in limits},
        known={
            entry.shape: Known(entry.tokens, entry.embeds, entry.basis)
            for _, part in parts
            for entry in part.known
        },
        refused={entry.shape: entry.reason for _, part in parts for entry in part.refused},
        rules={m: part.rule for m, part in parts if part.rule is not None},
        server=server or Server(),
        text=_bound(costs),
        counted={e.digest: e.tokens for e in costs.text.counted} if costs.text else {},
        encoder_decoder=costs.encoder_decoder,
    )


def _bound(costs: Costs) -> TextBound | None:
    """None in files of earlier versions, which say nothing of texts."""
    if costs.text is None:
        return TextBound(why=costs.uncounted) if costs.uncounted else None
    return costs.text.bound


class _Counted(BaseModel):
    count: int


class _Served(BaseModel):
    """What of an engine's configuration decides what it admits."""

    limit_mm_per_prompt: dict[str, int | _Counted]
    max_model_len: int


def _count(limit: int | _Counted) -> int:
    return limit if isinstance(limit, int) else limit.count
