"""What one item of a shape costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from mmcalib.domain.shapes import Shape

# real: the media itself went through vLLM; blank: a stand-in of equal shape did; unchanged: below
# the cap that distinguishes this setting from the default, and so computed from the default;
# counted: computed by vLLM's own count of its size, which agreed with all that were processed.
Basis = Literal["real", "blank", "unchanged", "counted"]
BASES: tuple[Basis, ...] = get_args(Basis)


@dataclass(frozen=True, slots=True)
class ItemCost:
    """Cost of one item of `shape`; `count` items of the corpus have it. `tokens` in the prompt,
    `embeds` in the encoder cache, `tensor_bytes` of processed tensors, `process_s` seconds to load
    and process. `sampled` is what vLLM's loader handed over, as in `mmcalib.domain.model.Cost`;
    `cpu_s` are a real item's processor seconds, which no stand-in has.
    """

    shape: Shape
    count: int
    exemplar: str
    tokens: int
    embeds: int
    tensor_bytes: int
    process_s: float
    sampled: tuple[int, ...]
    basis: Basis
    cpu_s: float = 0.0


def heaviest(costs: Iterable[ItemCost]) -> ItemCost | None:
    """The one that takes most of the encoder cache; ties by path, so that it is stable."""
    return max(costs, key=lambda cost: (cost.embeds, cost.tokens, cost.exemplar), default=None)
