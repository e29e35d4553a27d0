"""Costs under a setting without processing every item again, where vLLM's own count allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.derive import counted
from mmcalib.derive.costs import CostTable, heaviest
from mmcalib.derive.counted import SPOTS, Counts
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, CountEmbeds
from mmcalib.errors import VllmMoved, VllmRefused
from mmcalib.workflows.decision.measure import remeasure


@dataclass(frozen=True, slots=True)
class EmbedCounter:
    """vLLM's count of one modality's items, which reproduced what the default setting costs."""

    host: EngineHost
    default: CostTable
    shapes: tuple[Shape, ...]

    @classmethod
    def proven(
        cls, host: EngineHost, default: CostTable, modality: Modality
    ) -> EmbedCounter | None:
        """None where there is no count, it is wrong, or so few shapes that none is needed. Items
        that are not what their headers say are neither proof nor disproof.
        """
        odd = {mismatch.shape for mismatch in default.mismatches}
        costs = [cost for cost in default.of(modality) if cost.shape not in odd]
        if len(costs) <= SPOTS:
            return None
        shapes = tuple(cost.shape for cost in costs)
        found = count(host, default.setting, shapes)
        if found is None or not counted.reproduces(found, costs):
            return None
        return cls(host, default, shapes)

    def under(self, setting: Setting) -> CostTable | None:
        """The costs under the setting; None where the spot checks do not bear the count out."""
        counts = count(self.host, setting, self.shapes)
        if counts is None:
            return None
        before = [self.default.costs[shape] for shape in self.shapes]
        moved = counted.changed(counts, before)
        spots = counted.spots(moved, counts) if len(moved) > SPOTS else [c.shape for c in moved]
        same = heaviest(cost for cost in before if cost not in moved)
        measured = [*spots, *([same.shape] if same else []), *self._uncounted()]
        table = remeasure(self.host, self.default, setting, measured)
        checked = [shape for shape in measured if shape in counts]
        return counted.filled(table, self.default, counts, checked)

    def _uncounted(self) -> list[Shape]:
        """Other shapes of the modality, for which only processing tells."""
        known = set(self.shapes)
        every = self.default.of(self.shapes[0].modality)
        return [cost.shape for cost in every if cost.shape not in known]


def count(host: EngineHost, setting: Setting, shapes: Sequence[Shape]) -> Counts | None:
    """By vLLM's code; None unless it counts every shape."""
    blanks = tuple(Blank(shape) for shape in shapes)
    try:
        answer = host.ask(CountEmbeds(setting, blanks), "counting")
    except (VllmMoved, VllmRefused):
        return None
    if None in answer.embeds:
        return None
    return {
        shape: counted.VllmCount(embeds or 0, sampled)
        for shape, embeds, sampled in zip(shapes, answer.embeds, answer.sampled, strict=True)
    }
