"""What every shape of the corpus costs under one setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mmcalib.derive.cost_columns import CostColumns
from mmcalib.derive.cost_map import CostMap
from mmcalib.derive.item_cost import ItemCost, heaviest
from mmcalib.domain.cost import RefusedBy
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import MODALITIES, Modality, Shape


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
class Resampled:
    """Samples of a real sound at the model's rate, by vLLM's loader and by librosa."""

    exemplar: str
    vllm_samples: int
    librosa_samples: int


@dataclass(frozen=True, slots=True)
class CostTable:
    """All costs under one setting, of each modality that has any.

    `compared` real items were loaded and held against their stand-ins; `failed` of each modality
    could not be loaded by vLLM, though a stand-in of their shape could; so many are `out_of_reach`
    from here. `witnesses`: so many stand-ins were processed of a modality whose other shapes are
    counted.
    """

    setting: Setting
    columns: Mapping[Modality, CostColumns]
    refusals: tuple[Refusal, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    compared: int = 0
    failed: dict[Modality, int] = field(default_factory=dict)
    witnesses: dict[Modality, int] = field(default_factory=dict)
    out_of_reach: int = 0
    resampled: tuple[Resampled, ...] = ()

    @property
    def costs(self) -> CostMap:
        """By shape."""
        return CostMap(self.columns)

    def of(self, modality: Modality) -> CostColumns:
        """The costs of one modality, ascending by shape."""
        return self.columns.get(modality) or CostColumns.of(modality, ())

    def modalities(self) -> tuple[Modality, ...]:
        return tuple(m for m in MODALITIES if self.of(m))

    def items(self) -> int:
        """How many there are of all shapes."""
        return sum(columns.items() for columns in self.columns.values())

    def most_embeds(self) -> dict[Modality, int]:
        """Of the largest item of each modality."""
        return {m: int(self.of(m).embeds.max()) for m in self.modalities()}

    @property
    def largest_embeds(self) -> int:
        """Of any item."""
        return max(self.most_embeds().values(), default=0)

    def heaviest(self, modality: Modality) -> ItemCost | None:
        """The item that takes most of the encoder cache; ties by path, so that it is stable."""
        return self.of(modality).heaviest

    def largest(self) -> ItemCost | None:
        """The heaviest of all modalities."""
        return heaviest(cost for m in self.modalities() if (cost := self.heaviest(m)))
