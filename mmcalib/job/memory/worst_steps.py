"""The worst step of each modality, as configurations whose startup profile is that step (R4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.census.shapes import Modality
from mmcalib.derive.adequacy import Shortfall, WorstStep, worst_step
from mmcalib.engine.messages import Rehearsed
from mmcalib.job.configuration import Configuration


def configurations(decision: Configuration) -> Iterator[tuple[Modality, dict[str, Any]]]:
    """Per served modality: engine arguments under which vLLM profiles a step full of it.

    The budget stays what it is; size hints are gone, because they shrink the profiled item and not
    what may come, and so is a skipped profile. A step of several modalities encodes one after the
    other within the same budget and keeps only their results, so the costliest single one bounds
    it.
    """
    budget = decision.budget
    for modality, count in decision.counts.items():
        if not count.value or not budget.max_tokens_per_item.get(modality):
            continue
        only = {m: count.value if m == modality else 0 for m in decision.counts}
        args = {k: v for k, v in decision.engine_args.items() if k != "skip_mm_profiling"}
        yield (
            modality,
            {
                **args,
                "limit_mm_per_prompt": only,
                "max_num_batched_tokens": budget.encoder_budget_tokens,
            },
        )


def shortfall(
    decision: Configuration, calibrated: Rehearsed, steps: Mapping[Modality, Rehearsed]
) -> Shortfall:
    """The costliest step, of at least one, against what the calibrated profile reserved."""
    found = [_worst(decision, modality, step) for modality, step in steps.items()]
    return Shortfall(
        reserved_bytes=calibrated.activation_peak_bytes,
        worst=max(found, key=lambda step: step.peak_bytes),
        outside_bytes=calibrated.total_bytes - calibrated.requested_bytes,
    )


def _worst(decision: Configuration, modality: Modality, step: Rehearsed) -> WorstStep:
    """Scaled to a full step, which is no more than all sequences can ask for at once."""
    budget = decision.budget
    peak = next((phase.peak_bytes for phase in step.phases if phase.name == "encoder"), 0)
    most = budget.largest_item(modality)
    asked = budget.max_num_seqs * decision.counts[modality].value * most
    return worst_step(
        modality,
        peak,
        profiled_tokens=step.encoder_tokens,
        limit_tokens=min(budget.encoder_budget_tokens, asked),
    )
