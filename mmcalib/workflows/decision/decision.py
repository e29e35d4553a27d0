"""The derived configuration, and everything that it was derived from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from mmcalib.derive.costs import CostTable
from mmcalib.derive.effects import Effect
from mmcalib.derive.fit import Fit
from mmcalib.derive.frontier import Point, retention
from mmcalib.derive.limits import Adequacy, Count, Hint, Rounding
from mmcalib.derive.processor_cache import CacheFloor, cache_floor
from mmcalib.domain.budget import Budget
from mmcalib.domain.cost import Retention
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import Knob
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality
from mmcalib.workflows.decision.cache import NOT_SIZED, DecidedCache, UnsizedCache
from mmcalib.workflows.decision.explore import Explored


@dataclass(frozen=True, slots=True)
class Decision:
    """The derived configuration and everything it was derived from. `chosen` has one point of each
    knob that has an effect; `forced` says why it is not what the policy alone would choose, and
    `forced_by` what lacks; `rounding` is how the step was rounded to whole items; `unhinted` is the
    budget without size hints: what vLLM says of the model; `cache` is the processor cache, or why
    none is sized.
    """

    default_table: CostTable
    table: CostTable
    setting: Setting
    explored: tuple[Explored, ...]
    chosen: tuple[Point, ...]
    ineffective: tuple[Knob, ...]
    counts: dict[Modality, Count]
    hints: dict[Modality, Hint]
    refused_hints: dict[Modality, str]
    default_budget: Budget
    default_error: str
    budget: Budget
    unhinted: Budget
    adequacy: Adequacy
    engine_args: dict[str, Any]
    unreadable: tuple[Skipped, ...]
    longest: Fit | None
    rounding: Rounding = "up"
    forced: str = ""
    forced_by: Literal["", "context", "memory"] = ""
    effects: tuple[Effect, ...] = ()
    cache: DecidedCache = NOT_SIZED

    @property
    def plain(self) -> Budget:
        return self.unhinted

    def retention(self) -> dict[Modality, Retention]:
        """What items keep of the tokens that they take by default."""
        before = self.default_table
        return {m: retention(self.table.of(m), before.of(m)) for m in before.modalities()}

    def turns(self) -> set[Modality]:
        """The modalities whose items an option of the processor makes smaller."""
        knobs = (explored.point.knob for explored in self.explored)
        return {knob.modality for knob in knobs if not knob.by_loader}

    def cache_floor(self) -> CacheFloor:
        """What one request that this configuration admits may put into the processor cache, one
        that is too long for the context among them: it is to be refused, and not to fail.
        """
        counts = {m: count.value for m, count in self.counts.items()}
        return cache_floor(counts, self.table, self.unhinted, self.budget.encoder_budget_tokens)

    def with_cache(self, cache: DecidedCache) -> Decision:
        """The same with this processor cache, or the reason why vLLM's default stays."""
        if isinstance(cache, UnsizedCache):
            return replace(self, cache=cache)
        args = {**self.engine_args, "mm_processor_cache_gb": cache.mm_processor_cache_gb}
        return replace(self, cache=cache, engine_args=args)
