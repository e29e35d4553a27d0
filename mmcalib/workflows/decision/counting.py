"""Costs under a setting without processing every item again, where vLLM's own count allows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmcalib.derive import counting
from mmcalib.derive.costs import CostColumns, CostTable
from mmcalib.derive.counting import SPOTS, VllmCounts
from mmcalib.domain.setting import Setting
from mmcalib.domain.shape_columns import Column
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.engine.host import EngineHost
from mmcalib.workflows.decision.measure import remeasure
from mmcalib.workflows.decision.stand_ins import count

# Shapes that a value should leave alone, and that are counted under it all the same.
_SURE = 1_000


@dataclass(frozen=True, slots=True)
class EmbedCounter:
    """vLLM's count of one modality's items, which reproduced all that the default processed.
    `usual` are their costs by default.
    """

    host: EngineHost
    default: CostTable
    usual: CostColumns

    @classmethod
    def proven(
        cls, host: EngineHost, default: CostTable, modality: Modality
    ) -> EmbedCounter | None:
        """None where there is no count, it is wrong, or so few shapes that none is needed. Items
        that are not what their headers say are neither proof nor disproof.
        """
        costs = default.of(modality)
        costs = costs.but({one.shape: None for one in default.mismatches})
        if len(costs) <= SPOTS:
            return None
        if modality not in default.witnesses:
            found = count(host, default.setting, costs.shapes)
            if found is None or not counting.reproduces(found, costs):
                return None
        return cls(host, default, costs)

    def under(self, setting: Setting, touched: Column) -> CostTable | None:
        """The costs under the setting, which may have `touched` these; None where the spot checks
        do not bear the count out.
        """
        counts = self._counts(setting, touched)
        if counts is None:
            return None
        rows = self.usual.shapes.places(counts.shapes)
        same = counting.as_counted(counts, self.usual)[rows]
        moved, unmoved = rows[~same], self.usual.heaviest_of(rows[same])
        spots = (
            counting.spots(self.usual, moved, counts)
            if len(moved) > SPOTS
            else list(self.usual.shapes.take(moved))
        )
        checked = [*spots, *([unmoved.shape] if unmoved else [])]
        measured = [*checked, *self._uncounted(counts, touched)]
        table = remeasure(self.host, self.default, setting, measured)
        return counting.filled(table, self.default, counts, checked)

    def _counts(self, setting: Setting, touched: Column) -> VllmCounts | None:
        """Of what may change, and of the heaviest that should not; of all, if one of these does."""
        others = np.flatnonzero(~touched)
        heaviest = np.argsort(-self.usual.embeds[others], kind="stable")[:_SURE]
        surest = np.sort(others[heaviest])
        if touched.sum() + len(surest) < len(self.usual):
            asked = touched.copy()
            asked[surest] = True
            counts = count(self.host, setting, self.usual.shapes.take(np.flatnonzero(asked)))
            if counts and counting.reproduces(counts, self.usual.take(surest)):
                return counts
        return count(self.host, setting, self.usual.shapes)

    def _uncounted(self, counts: VllmCounts, touched: Column) -> list[Shape]:
        """Shapes of the modality for which only processing tells."""
        shapes = self.usual.shapes
        left = touched & (counts.shapes.places(shapes) < 0)
        every = self.default.of(self.usual.modality).shapes
        odd = every.take(np.flatnonzero(shapes.places(every) < 0))
        return [*shapes.take(np.flatnonzero(left)), *(s for s in odd if s not in counts.shapes)]
