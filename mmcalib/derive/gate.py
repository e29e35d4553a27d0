"""What an item or a prompt is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mmcalib.derive.bounds import Rule
from mmcalib.domain.server import Server
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.domain.text_bound import TextBound


@dataclass(frozen=True, slots=True)
class Known:
    """The cost of a shape of the corpus, as measured or as vLLM counts it."""

    tokens: int
    embeds: int
    basis: Literal["real", "blank", "counted"]


@dataclass(frozen=True, slots=True)
class Gate:
    """What a configuration admits, and all that is known of what items cost under it.

    `counts` has the modalities that the model takes, with their items per prompt; `refused` shapes
    that vLLM refused when they were measured. `server` says which files are let in. `text` bounds
    the text of a request, None where the calibration says nothing of texts, and `counted` has the
    text tokens of requests by their digests; items of an `encoder_decoder` model are no part of its
    context.
    """

    budget_tokens: int
    max_model_len: int
    text_reserve_tokens: int
    counts: Mapping[Modality, int]
    known: Mapping[Shape, Known]
    refused: Mapping[Shape, str]
    rules: Mapping[Modality, Rule]
    server: Server = field(default_factory=Server)
    text: TextBound | None = None
    encoder_decoder: bool = False
    counted: Mapping[str, int] = field(default_factory=dict)
