"""Costs under a setting without processing every item again, where vLLM's own count allows it."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.derive import counted
from mmcalib.derive.costs import CostTable, heaviest
from mmcalib.derive.counted import SPOTS, Counts
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.engine.host import EngineHost
from mmcalib.workflows.decision.measure import remeasure
from mmcalib.workflows.decision.stand_ins import count


@dataclass(frozen=True, slots=True)
class EmbedCounter:
    """vLLM's count of one modality's items, which reproduced all that the default processed."""

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
        if modality not in default.witnesses:
            found = count(host, default.setting, [cost.shape for cost in costs])
            if not counted.reproduces(found, costs):
                return None
        return cls(host, default, tuple(cost.shape for cost in costs))

    def under(self, setting: Setting) -> CostTable | None:
        """The costs under the setting; None where the spot checks do not bear the count out."""
        counts = count(self.host, setting, self.shapes)
        if not counts:
            return None
        before = [self.default.costs[shape] for shape in counts]
        moved = counted.changed(counts, before)
        spots = counted.spots(moved, counts) if len(moved) > SPOTS else [c.shape for c in moved]
        elsewhere = {cost.shape for cost in moved}
        same = heaviest(cost for cost in before if cost.shape not in elsewhere)
        measured = [*spots, *([same.shape] if same else []), *self._without(counts)]
        table = remeasure(self.host, self.default, setting, measured)
        checked = [shape for shape in measured if shape in counts]
        return counted.filled(table, self.default, counts, checked)

    def _without(self, counts: Counts) -> list[Shape]:
        """Shapes of the modality for which only processing tells."""
        every = self.default.of(self.shapes[0].modality)
        return [cost.shape for cost in every if cost.shape not in counts]
