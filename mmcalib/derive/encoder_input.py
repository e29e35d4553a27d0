"""Steps that give the encoder more than the step of as many tokens that vLLM profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mmcalib.derive.adequacy import ADEQUATE
from mmcalib.derive.costs import CostTable
from mmcalib.derive.item_cost import ItemCost
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality


@dataclass(frozen=True, slots=True)
class Excess:
    """One step may encode so many `items` like `cost`, whose tensors are `times` those of a full
    step of vLLM's dummies. `max_num_seqs` would bound it to these, 0 where one prompt is beyond.

    vLLM bounds a step by tokens. A processor that pads what is short, or merges the tokens of many
    tiles, gives the encoder more for each token than the dummy does.
    """

    modality: Modality
    cost: ItemCost
    items: int
    times: float
    max_num_seqs: int


def excesses(
    table: CostTable, budget: Budget, plain: Budget, counts: Mapping[Modality, int]
) -> Iterator[Excess]:
    """Per modality the costliest step of items like the corpus', where the slack of a profile does
    not cover it. `plain` is the budget without size hints, with its dummies.
    """
    limit = budget.encoder_budget_tokens
    for modality in table.modalities():
        count, dummy = counts.get(modality, 0), plain.dummies.get(modality)
        if not count or dummy is None or not dummy.embeds or not dummy.tensor_bytes:
            continue
        at_once = budget.max_num_seqs * count
        profiled_bytes = min(limit / dummy.embeds, at_once) * dummy.tensor_bytes
        costs = table.of(modality)
        costs = costs.take(costs.embeds > 0)
        if not costs:
            continue
        most = np.minimum(limit // costs.embeds, at_once) * costs.tensor_bytes
        worst = max(costs.take(most == most.max()), key=lambda cost: cost.exemplar)
        items, nbytes = min(limit // worst.embeds, at_once), int(most.max())
        if profiled_bytes < ADEQUATE * nbytes:
            fitting = int(profiled_bytes / (worst.tensor_bytes * count))
            yield Excess(modality, worst, items, nbytes / profiled_bytes, fitting)
