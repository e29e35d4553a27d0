"""Models of item costs in `calibration.json`, their bins, and the gate built from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, FailFast, Field, ValidationError, WithJsonSchema

from mmcalib.domain.items import TextBound, TextCounting
from mmcalib.domain.model import Server
from mmcalib.domain.shapes import MODALITIES, AudioShape, ImageShape, VideoShape
from mmcalib.errors import UsageError, first_error
from mmcalib.gate.admission import AudioLimits, Gate, ShapeCost
from mmcalib.gate.bounds import Area, Ceiling, Frames, Ladder
from mmcalib.releases.constants import AUDIO_RATE_HZ, CRASHING_AUDIO_SAMPLES
from mmcalib.results.part import POSITIVE, DocumentPart

if TYPE_CHECKING:
    from mmcalib.limits.costs import ItemCost

# Each type has fields that the next one does not, so the first match is the right one.
_AnyShape = Annotated[
    VideoShape | AudioShape | ImageShape, Field(union_mode="left_to_right"), POSITIVE
]
_AnyRule = Annotated[Frames | Ladder | Ceiling | Area, Field(union_mode="left_to_right"), POSITIVE]


class KnownCost(DocumentPart):
    """Cost of every item of one shape."""

    shape: _AnyShape
    tokens: int = Field(description="In the prompt")
    embeds: int = Field(description="In the encoder cache")
    # vLLM's formula agreed with every measured shape.
    basis: Literal["real", "blank", "counted"] = Field(
        description="Measured on a real or blank item, or counted by vLLM's formula"
    )
    items: int = Field(description="Items of this shape")
    exemplar: str = Field(default="", description="Path of one item; only for the costliest shapes")


@dataclass(slots=True)
class TokenBin:
    """Numbers of shapes and items that cost `least_tokens` up to the next bin."""

    least_tokens: int
    shapes: int = 0
    items: int = 0


@dataclass(slots=True)
class SizeCell:
    """Shapes of about one size; `shape` and `tokens` are of the costliest."""

    shape: ImageShape
    tokens: int
    shapes: int


class Unlisted(DocumentPart):
    """Shapes that the rule covers, in bins of a third of an octave."""

    tokens: list[TokenBin]
    sizes: list[SizeCell]

    @property
    def shapes(self) -> int:
        return sum(one.shapes for one in self.tokens)


# Bins per factor of two.
_STEPS = 3


def bin_index(value: float) -> int:
    """Return the bin of a number; below one counts as one."""
    return math.floor(math.log2(max(1, value)) * _STEPS)


def bin_edge(number: float) -> float:
    """Return the lower edge of a bin."""
    return float(2 ** (number / _STEPS))


def bin_by_tokens(costs: Iterable[ItemCost]) -> list[TokenBin]:
    """Bin costs by tokens, ascending, without empty bins."""
    bins: dict[int, TokenBin] = {}
    for cost in costs:
        at = bin_index(cost.tokens)
        bin_ = bins.setdefault(at, TokenBin(math.ceil(bin_edge(at))))
        bin_.shapes += 1
        bin_.items += cost.count
    return [bins[at] for at in sorted(bins)]


def bin_by_size(costs: Iterable[ItemCost]) -> list[SizeCell]:
    """Bin images by width and height, the smallest first."""
    cells: dict[tuple[int, int], SizeCell] = {}
    for cost in costs:
        shape = cost.shape
        if not isinstance(shape, ImageShape):
            continue
        at = bin_index(shape.width_px), bin_index(shape.height_px)
        cell = cells.setdefault(at, SizeCell(shape, cost.tokens, 0))
        cell.shapes += 1
        if cost.tokens > cell.tokens:
            cell.shape, cell.tokens = shape, cost.tokens
    return [cells[at] for at in sorted(cells)]


class ModalityCosts(DocumentPart):
    """Costs of one modality."""

    known: Annotated[list[KnownCost], FailFast()] = Field(description="Shapes of the corpus")
    refused: Annotated[list[tuple[_AnyShape, str]], FailFast()] = Field(
        default_factory=list, description="Shapes that vLLM rejects, with its error"
    )
    rule: _AnyRule | None = Field(default=None, description="Bound for other shapes; null: unknown")
    compared: int = Field(default=0, description="Shapes that the rule reproduced")
    unlisted: Unlisted | None = Field(default=None, description="Shapes left out of `known`")


class Costs(DocumentPart):
    """Data for `mmcalib check` and `Calibration.admits`, measured."""

    text_reserve_tokens: int
    modalities: dict[str, ModalityCosts] = Field(description="Modalities of the corpus")
    text: TextBound = Field(description="Bound of a request's text tokens")
    counted: Annotated[list[tuple[str, int]], FailFast()] = Field(
        default_factory=list, description="Texts above the bound: digest, tokens"
    )
    counting: Annotated[TextCounting | None, WithJsonSchema({"type": ["object", "null"]})] = Field(
        default=None, description="How `check` counts such texts; internal"
    )
    uncounted: str = Field(default="", description="Texts that `check` cannot count, and why")
    grammar: dict[str, Any] = Field(default_factory=dict, description="vLLM's request schema")
    encoder_decoder: bool = Field(default=False, description="True: items take no context")


def build_gate(
    costs: Costs,
    engine_config: Mapping[str, Any],
    budget_tokens: int,
    server: Server | None = None,
    architecture: str = "",
) -> Gate:
    """Build the rules that judge items; files need a `server`. Raises UsageError without limits."""
    try:
        served = _Served.model_validate(engine_config)
    except ValidationError as error:
        raise UsageError(
            f"the calibration's engine_config is not usable: {first_error(error)}",
            hint="mmcalib run writes a usable one",
        ) from error
    limits = served.limit_mm_per_prompt.items()
    limited = {m: one if isinstance(one, int) else one.count for m, one in limits}
    parts = [(m, costs.modalities[m]) for m in MODALITIES if m in costs.modalities]
    rules = {m: part.rule for m, part in parts if part.rule is not None}
    audio, dies_of = rules.get("audio"), CRASHING_AUDIO_SAMPLES.get(architecture, range(0))
    # For encoder-decoder models (transcription), FFmpeg resamples
    # (`load_audio_soundfile`, vllm/multimodal/media/audio.py:227, 0.32).
    rate_hz = audio.rate_hz if isinstance(audio, Ladder) else AUDIO_RATE_HZ
    hearing = AudioLimits(None) if costs.encoder_decoder else AudioLimits(rate_hz, dies_of)
    return Gate(
        budget_tokens=budget_tokens,
        max_model_len=served.max_model_len,
        text_reserve_tokens=costs.text_reserve_tokens,
        counts={m: limited[m] for m in MODALITIES if m in limited},
        known_costs={
            entry.shape: ShapeCost(entry.tokens, entry.embeds, entry.basis)
            for _, part in parts
            for entry in part.known
        },
        refusals=dict(refused for _, part in parts for refused in part.refused),
        rules=rules,
        server=server or Server(),
        text=costs.text,
        text_counts=dict(costs.counted),
        encoder_decoder=costs.encoder_decoder,
        audio_limits=hearing,
    )


class _Counted(BaseModel):
    count: int


class _Served(BaseModel):
    """The parts of an engine's configuration that decide which items it accepts."""

    limit_mm_per_prompt: dict[str, int | _Counted]
    max_model_len: int
