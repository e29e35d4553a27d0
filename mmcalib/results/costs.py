"""What items cost under the calibrated configuration, as `calibration.json` keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, FailFast, Field, ValidationError, WithJsonSchema

from mmcalib.derive.admission import Gate, Hearing, Known
from mmcalib.derive.bounds import Area, Ceiling, Frames, Ladder
from mmcalib.derive.distribution import SizeCell, TokenBin
from mmcalib.domain.items import TextBound, TextCounting
from mmcalib.domain.model import Server
from mmcalib.domain.shapes import MODALITIES, AudioShape, ImageShape, VideoShape
from mmcalib.errors import UsageError
from mmcalib.releases.constants import ENGINE_DIES_OF, RESAMPLED_HZ
from mmcalib.results.part import POSITIVE, DocumentPart, complaint

# Each has fields that the next lacks, so that the first that matches is meant.
_AnyShape = Annotated[
    VideoShape | AudioShape | ImageShape, Field(union_mode="left_to_right"), POSITIVE
]
_AnyRule = Annotated[Frames | Ladder | Ceiling | Area, Field(union_mode="left_to_right"), POSITIVE]


class KnownCost(DocumentPart):
    """Tokens in the prompt and embeds in the encoder cache of every item of a shape, measured or,
    as `counted`, by vLLM's own count of its size, which agreed with all that were measured.

    `items` have the shape. `exemplar` is the path of one, kept of the costliest shapes only.
    """

    shape: _AnyShape
    tokens: int
    embeds: int
    basis: Literal["real", "blank", "counted"]
    items: int | None = None
    exemplar: str = ""


class Unlisted(DocumentPart):
    """Shapes of the corpus that are not listed, because the rule says to the token what they cost,
    or because they are so many that it bounds it: in bins and cells of a third of an octave.
    """

    tokens: list[TokenBin]
    sizes: list[SizeCell]

    @property
    def shapes(self) -> int:
        return sum(one.shapes for one in self.tokens)


class ModalityCosts(DocumentPart):
    """`rule` bounds unseen shapes; it reproduced all of `compared` shapes. None: unknown. `known`
    has all shapes of the corpus but the `unlisted`, for which the rule stands, and those of which
    vLLM refuses every item: `refused` has each with its words.
    """

    known: Annotated[list[KnownCost], FailFast()]
    refused: Annotated[list[tuple[_AnyShape, str]], FailFast()] = Field(default_factory=list)
    rule: _AnyRule | None = None
    compared: int = 0
    unlisted: Unlisted | None = None


class Costs(DocumentPart):
    """By modality, *measured*; those that the model takes and the corpus lacks are not there.
    `text` bounds what texts take, and `counted` has those of the corpus that it does not settle:
    the digest of all of a request but its media, and its tokens. By `counting` other such texts are
    counted, without vLLM; `uncounted` says why none are, or which are not. `grammar` is what the
    installed vLLM says of chat requests, as `mmcalib.corpus.grammar` reads it. With
    `encoder_decoder` items are no part of the context.
    """

    text_reserve_tokens: int
    modalities: dict[str, ModalityCosts]
    text: TextBound
    counted: Annotated[list[tuple[str, int]], FailFast()] = Field(default_factory=list)
    # Read by mmcalib alone.
    counting: Annotated[TextCounting | None, WithJsonSchema({"type": ["object", "null"]})] = None
    uncounted: str = ""
    grammar: dict[str, Any] = Field(default_factory=dict)
    encoder_decoder: bool = False


def gate_of(
    costs: Costs,
    engine_config: Mapping[str, Any],
    budget_tokens: int,
    server: Server | None = None,
    architecture: str = "",
) -> Gate:
    """What an engine of this configuration admits; without a `server` nothing is known of files.
    Raises UsageError where it does not limit every modality that it takes.
    """
    try:
        served = _Served.model_validate(engine_config)
    except ValidationError as error:
        raise UsageError(
            f"the calibration's engine_config says nothing of use: {complaint(error)}",
            hint="mmcalib run writes one that does",
        ) from error
    limits = served.limit_mm_per_prompt.items()
    limited = {m: one if isinstance(one, int) else one.count for m, one in limits}
    parts = [(m, costs.modalities[m]) for m in MODALITIES if m in costs.modalities]
    rules = {m: part.rule for m, part in parts if part.rule is not None}
    audio, dies_of = rules.get("audio"), ENGINE_DIES_OF.get(architecture, range(0))
    # Transcriptions, which are what an encoder-decoder model is for, are resampled by FFmpeg
    # (`load_audio_soundfile`, vllm/multimodal/media/audio.py:227, 0.32).
    rate_hz = audio.rate_hz if isinstance(audio, Ladder) else RESAMPLED_HZ
    hearing = Hearing(None) if costs.encoder_decoder else Hearing(rate_hz, dies_of)
    return Gate(
        budget_tokens=budget_tokens,
        max_model_len=served.max_model_len,
        text_reserve_tokens=costs.text_reserve_tokens,
        counts={m: limited[m] for m in MODALITIES if m in limited},
        known={
            entry.shape: Known(entry.tokens, entry.embeds, entry.basis)
            for _, part in parts
            for entry in part.known
        },
        refused=dict(refused for _, part in parts for refused in part.refused),
        rules=rules,
        server=server or Server(),
        text=costs.text,
        counted=dict(costs.counted),
        encoder_decoder=costs.encoder_decoder,
        hearing=hearing,
    )


class _Counted(BaseModel):
    count: int


class _Served(BaseModel):
    """What of an engine's configuration decides what it admits."""

    limit_mm_per_prompt: dict[str, int | _Counted]
    max_model_len: int
