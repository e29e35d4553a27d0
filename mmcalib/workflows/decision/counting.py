"""Costs under a setting without processing every item again, where vLLM's own count allows it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass

from mmcalib.derive import counted
from mmcalib.derive.costs import CostTable, heaviest
from mmcalib.derive.counted import SPOTS, Counts
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.engine.host import EngineHost
from mmcalib.workflows.decision.measure import remeasure
from mmcalib.workflows.decision.stand_ins import count

# Shapes that a value should leave alone, and that are counted under it all the same.
_SURE = 1_000


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

    def under(self, setting: Setting, changes: Callable[[Shape], bool]) -> CostTable | None:
        """The costs under the setting, which `changes` these shapes; None where the spot checks do
        not bear the count out.
        """
        touched = {shape for shape in self.shapes if changes(shape)}
        counts = self._counts(setting, touched)
        if not counts:
            return None
        before = [self.default.costs[shape] for shape in counts]
        moved = counted.changed(counts, before)
        spots = counted.spots(moved, counts) if len(moved) > SPOTS else [c.shape for c in moved]
        elsewhere = {cost.shape for cost in moved}
        same = heaviest(cost for cost in before if cost.shape not in elsewhere)
        measured = [*spots, *([same.shape] if same else []), *self._uncounted(counts, touched)]
        table = remeasure(self.host, self.default, setting, measured)
        checked = [shape for shape in measured if shape in counts]
        return counted.filled(table, self.default, counts, checked)

    def _counts(self, setting: Setting, touched: Collection[Shape]) -> Counts:
        """Of what may change, and of the heaviest that should not; of all, if one of these does."""
        others = (self.default.costs[shape] for shape in self.shapes if shape not in touched)
        surest = heapq.nlargest(_SURE, others, key=lambda cost: (cost.embeds, cost.exemplar))
        if len(touched) + len(surest) < len(self.shapes):
            first = [shape for shape in self.shapes if shape in touched]
            counts = count(self.host, setting, [*first, *(cost.shape for cost in surest)])
            if counts and counted.reproduces(counts, surest):
                return counts
        return count(self.host, setting, self.shapes)

    def _uncounted(self, counts: Counts, touched: Collection[Shape]) -> list[Shape]:
        """Shapes of the modality for which only processing tells."""
        known = set(self.shapes)
        return [
            cost.shape
            for cost in self.default.of(self.shapes[0].modality)
            if cost.shape not in counts and (cost.shape not in known or cost.shape in touched)
        ]
