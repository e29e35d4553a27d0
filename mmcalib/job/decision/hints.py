"""Size hints (R3), tried against the dummy that vLLM builds from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.derive import limits
from mmcalib.derive.costs import CostTable
from mmcalib.derive.limits import Count, Hint
from mmcalib.domain.shapes import Modality
from mmcalib.job.decision.budgets import BudgetSource


def hints(
    args: Mapping[str, Any],
    counts: Mapping[Modality, Count],
    table: CostTable,
    budgets: BudgetSource,
) -> tuple[dict[Modality, Hint], dict[Modality, str]]:
    """Per modality the first hint whose dummy costs what may come, or why there is none."""
    found: dict[Modality, Hint] = {}
    refused: dict[Modality, str] = {}
    for modality in table.modalities():
        heaviest = table.heaviest(modality)
        if heaviest is None or counts[modality].value == 0:
            continue
        why = "it has no size that a hint could name"
        for hint in limits.hint_candidates(heaviest, budgets.opened.audio_rate_hz):
            tried = limits.limit_mm_per_prompt(counts, {**found, modality: hint})
            budget = budgets.of({**args, "limit_mm_per_prompt": tried}, build_dummy=True)
            if limits.hint_is_honest(modality, budget, heaviest):
                found[modality] = hint
                break
            dummy = budget.dummies.get(modality)
            most = max(heaviest.embeds, budget.max_tokens_per_item.get(modality, 0))
            why = "vLLM profiles no item of its own for it"
            if dummy is not None:
                why = f"vLLM would profile {dummy.embeds} tokens where one item may take {most}"
        if modality not in found:
            refused[modality] = why
    return found, refused
