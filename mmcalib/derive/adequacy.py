"""What vLLM's profile reserves for against the worst that its scheduler may run (R4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmcalib.census.shapes import Modality
from mmcalib.engine.messages import Budget

# Below this share a step can be so much larger than the profile that the allocator's and vLLM's
# own slack (150 MiB, vllm/v1/worker/gpu_worker.py) do not cover it. Tokens only; bytes decide once
# memory is rehearsed.
ADEQUATE = 0.9


@dataclass(frozen=True, slots=True)
class Adequacy:
    """Tokens that the profile encodes, tokens that one step may encode, and their ratio."""

    profiled_tokens: int
    worst_step_tokens: int

    @property
    def ratio(self) -> float:
        return self.profiled_tokens / self.worst_step_tokens if self.worst_step_tokens else 1.0

    @property
    def passes(self) -> bool:
        return self.ratio >= ADEQUATE


def adequacy(budget: Budget, counts: Mapping[Modality, int]) -> Adequacy:
    """Adequacy of one engine configuration whose dummies were built.

    `counts` are the items per prompt of each modality. An image or clip is at most what vLLM says
    is the largest; a video may be anything that fits the budget, since no processor option of vLLM
    bounds its frames.
    """
    limit = budget.encoder_budget_tokens
    per_sequence = 0
    for modality, count in counts.items():
        most = budget.max_tokens_per_item.get(modality, 0)
        per_sequence += count * (limit if modality == "video" and most else most)
    profiled = 0
    if budget.profiled_modality is not None:
        dummy = budget.dummies.get(budget.profiled_modality)
        embeds = dummy.embeds if dummy else budget.max_tokens_per_item[budget.profiled_modality]
        profiled = budget.profiled_items * embeds
    return Adequacy(profiled, min(limit, budget.max_num_seqs * per_sequence))
