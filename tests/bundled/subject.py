"""A bundled model, and what vLLM makes of everything that it is tried with."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mmcalib.domain.knobs import DEFAULT, Setting
from mmcalib.domain.memory import Budget
from mmcalib.domain.model import Cost
from mmcalib.domain.shape_columns import Column, Shapes
from mmcalib.domain.shapes import MODALITIES, Modality, Shape
from mmcalib.engine.messages import Blank, CountEmbeds, EmbedCounts
from mmcalib.limits.costs import sampled_rows
from mmcalib.models.catalogue import Geometry
from tests.bundled.shapes import PROBES, SHAPES
from tests.engine.conftest import Lab


@dataclass(frozen=True)
class Tried:
    """Items as loaded, which is what knobs ask of them."""

    shapes: Shapes
    sampled: Column
    embeds: Column


class Subject:
    """Opened in the session's engine host; each question is asked once."""

    def __init__(self, geometry: Geometry, lab: Lab) -> None:
        self.geometry, self.lab = geometry, lab
        self.opened = lab.opened
        self._costs: dict[Modality, dict[str, Cost | str]] = {}

    @property
    def modalities(self) -> list[Modality]:
        return [modality for modality in MODALITIES if modality in self.opened.modalities]

    def costs(self, modality: Modality) -> dict[str, Cost | str]:
        """Cost each shape by its name; a refusal is in vLLM's words."""
        if modality not in self._costs:
            self._costs[modality] = self._measured(SHAPES[modality], DEFAULT)
        return self._costs[modality]

    def probes(self, modality: Modality, setting: Setting = DEFAULT) -> list[tuple[int, int] | str]:
        """Tokens and embeds of the largest items that anybody has, under a setting."""
        shapes = {name: SHAPES[modality][name] for name in PROBES[modality]}
        found = self._measured(shapes, setting).values()
        return [(one.tokens, one.embeds) if isinstance(one, Cost) else one for one in found]

    def _measured(self, shapes: Mapping[str, Shape], setting: Setting) -> dict[str, Cost | str]:
        found = self.lab.costs(*map(Blank, shapes.values()), setting=setting)
        return dict(zip(shapes, found, strict=True))

    def tried(self, modality: Modality) -> Tried:
        loaded = {
            SHAPES[modality][name]: cost
            for name, cost in self.costs(modality).items()
            if isinstance(cost, Cost)
        }
        shapes = Shapes.from_shapes(modality, loaded)
        costs = [loaded[shape] for shape in shapes]
        sampled = sampled_rows(modality, (cost.sampled for cost in costs))
        return Tried(shapes, sampled, np.array([cost.embeds for cost in costs]))

    @cached_property
    def counted(self) -> dict[Modality, EmbedCounts]:
        return {
            modality: self.lab.host.ask(
                CountEmbeds(DEFAULT, tuple(Blank(shape) for shape in SHAPES[modality].values())),
                "counting",
            )
            for modality in self.modalities
        }

    @cached_property
    def budget(self) -> Budget:
        """vLLM's own, by its defaults."""
        return self.lab.budget(build_dummy=False)
