"""Models of item costs in `calibration.json`, and their bins."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import FailFast, Field, WithJsonSchema

from mmcalib.domain.items import TextBound, TextCounting
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.gate.bounds import Area, Ceiling, Frames, Ladder
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
