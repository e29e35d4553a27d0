"""How many large items the encoder cache holds at once (R6)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mmcalib.derive.costs import CostTable
from mmcalib.derive.item_cost import ItemCost
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality


@dataclass(frozen=True, slots=True)
class Residency:
    """The heaviest item of a modality: how many of it the encoder cache holds, and the steps that
    its part of the prompt takes at least. `alone` items of the corpus fill over half of the cache.

    vLLM keeps an item in the encoder cache until its last token has been through the language
    model, and encodes no item for which there is no room (`_free_encoder_inputs` and
    `_try_schedule_encoder_inputs`, vllm/v1/core/sched/scheduler.py of 0.32).
    """

    modality: Modality
    item: ItemCost
    items: int
    steps: int
    alone: int

    @property
    def blocks(self) -> bool:
        """Whether another such item has to wait for longer than a step.

        One that is through in a step holds nothing up: the cache is never smaller than a step, so
        a step has no room for a second one either. The same item twice shares its entry.
        """
        return self.items == 1 and self.steps > 1 and self.alone > 1


def residencies(table: CostTable, budget: Budget) -> Iterator[Residency]:
    """One per modality of which the corpus has items."""
    for modality in table.modalities():
        item = table.heaviest(modality)
        if item is not None and item.embeds:
            items = budget.encoder_cache_size // item.embeds
            steps = math.ceil(item.tokens / budget.max_num_batched_tokens)
            half = budget.encoder_cache_size // 2
            costs = table.of(modality)
            alone = int(costs.counts[costs.embeds > half].sum())
            yield Residency(modality, item, items, steps, alone)
