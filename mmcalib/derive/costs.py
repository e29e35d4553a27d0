"""What every shape of the corpus costs under one setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from mmcalib.domain.cost import RefusedBy
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import MODALITIES, Modality, Shape

# real: the media itself went through vLLM; blank: a stand-in of equal shape did; unchanged: below
# the cap that distinguishes this setting from the default, and so computed from the default;
# counted: computed by vLLM's own count of its size, which agreed with all that were processed.
Basis = Literal["real", "blank", "unchanged", "counted"]


@dataclass(frozen=True, slots=True)
class ItemCost:
    """Cost of one item of `shape`; `count` items of the corpus have it. `tokens` in the prompt,
    `embeds` in the encoder cache, `tensor_bytes` of processed tensors, `process_s` seconds to load
    and process. `sampled` is what vLLM's loader handed over, as in `mmcalib.domain.cost.Cost`;
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Every item of this shape is refused, for this reason."""

    shape: Shape
    count: int
    exemplar: str
    reason: str
    by: RefusedBy = "vllm"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A blank stand-in and the real item of equal shape differ; the real one wins."""

    exemplar: str
    shape: Shape
    real_tokens: int
    blank_tokens: int
    why: str


@dataclass(frozen=True, slots=True)
class CostTable:
    """All costs under one setting, by shape.

    `compared` real items were loaded and held against their stand-ins; `failed` of each modality
    could not be loaded by vLLM, though a stand-in of their shape could. `witnesses`: so many
    stand-ins were processed of a modality whose other shapes are counted.
    """

    setting: Setting
    costs: dict[Shape, ItemCost]
    refusals: tuple[Refusal, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    compared: int = 0
    failed: dict[Modality, int] = field(default_factory=dict)
    witnesses: dict[Modality, int] = field(default_factory=dict)

    def of(self, modality: Modality) -> list[ItemCost]:
        """The costs of one modality, by shape order of measurement."""
        return [cost for cost in self.costs.values() if cost.shape.modality == modality]

    def modalities(self) -> tuple[Modality, ...]:
        return tuple(m for m in MODALITIES if self.of(m))

    def most_embeds(self) -> dict[Modality, int]:
        """Of the largest item of each modality."""
        most: dict[Modality, int] = {}
        for cost in self.costs.values():
            modality = cost.shape.modality
            most[modality] = max(cost.embeds, most.get(modality, 0))
        return most

    @property
    def largest_embeds(self) -> int:
        """Of any item."""
        return max(self.most_embeds().values(), default=0)

    def heaviest(self, modality: Modality) -> ItemCost | None:
        """The item that takes most of the encoder cache; ties by path, so that it is stable."""
        return heaviest(self.of(modality))


def heaviest(costs: Iterable[ItemCost]) -> ItemCost | None:
    return max(costs, key=lambda cost: (cost.embeds, cost.tokens, cost.exemplar), default=None)
