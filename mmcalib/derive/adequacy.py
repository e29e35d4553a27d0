"""What vLLM's profile reserves for against the worst that its scheduler may run (R4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality

# Below this share a step can be so much larger than the profile that the allocator's and vLLM's
# own slack do not cover it. Tokens only: bytes decide where memory is rehearsed.
ADEQUATE = 0.9


@dataclass(frozen=True, slots=True)
class Adequacy:
    """Tokens that the profile encodes, tokens that one step may encode, and their ratio; `clip` is
    the largest video, where it is larger than vLLM's own dummy and no step is full of them.
    """

    profiled_tokens: int
    worst_step_tokens: int
    clip: str = ""

    @property
    def of(self) -> str:
        """What the worst step is made of, to stand behind its tokens."""
        return f" (videos of up to {self.clip})" if self.clip else ""

    @property
    def ratio(self) -> float:
        return self.profiled_tokens / self.worst_step_tokens if self.worst_step_tokens else 1.0

    @property
    def passes(self) -> bool:
        return self.ratio >= ADEQUATE


def adequacy(budget: Budget, counts: Mapping[Modality, int]) -> Adequacy:
    """Adequacy of one engine configuration whose dummies were built.

    `counts` are the items per prompt of each modality, each of which may be the largest that is
    admissible (`Budget.largest_item`).
    """
    limit = budget.encoder_budget_tokens
    per_sequence = sum(count * budget.largest_item(m) for m, count in counts.items())
    profiled = 0
    if budget.profiled_modality is not None:
        dummy = budget.dummies.get(budget.profiled_modality)
        embeds = dummy.embeds if dummy else budget.max_tokens_per_item[budget.profiled_modality]
        profiled = budget.profiled_items * embeds
    asked, clip = budget.max_num_seqs * per_sequence, budget.largest_clip
    larger = clip is not None and clip.embeds > budget.max_tokens_per_item.get("video", 0)
    named = str(clip) if larger and counts.get("video") and asked < limit else ""
    return Adequacy(profiled, min(limit, asked), named)
