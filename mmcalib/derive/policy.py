"""What the user wants, as opposed to what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mmcalib.census.shapes import Modality

Prefer = Literal["quality", "throughput"]

# Room for the text around the media and the answer. A choice, not a measurement: prompts differ.
TEXT_RESERVE_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Policy:
    """How limits are chosen. Tokens throughout; quantiles in (0, 1].

    `count` overrides the items per prompt of a modality. `coverage` is the share of prompts whose
    item count must be admitted. `max_tokens_per_item` caps every image and video frame outright.
    The three engine values are passed on where given and derived where None; `media_io_kwargs` is
    what the server will load media with, as vLLM spells it.
    """

    prefer: Prefer = "quality"
    coverage: float = 1.0
    count: Mapping[Modality, int] = field(default_factory=dict)
    max_tokens_per_item: int | None = None
    text_reserve_tokens: int = TEXT_RESERVE_TOKENS
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    allow_under_reserve: bool = False
    media_io_kwargs: Mapping[str, Any] = field(default_factory=dict)
