"""What serving may take at once, rehearsed: worst steps of each modality, as configurations whose
startup profile is that step, and what else lives beside the encoder's outputs (R4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mmcalib.checks.facts import Configuration
from mmcalib.derive.demand import (
    Demand,
    Excess,
    LanguageStep,
    Merge,
    PromptsStep,
    Resident,
    Shortfall,
    WorstStep,
    excesses,
    worst_step,
)
from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.domain.shapes import Modality

# Phases of the profile that a step of the language model is made of.
_LANGUAGE: Final = ("language model", "sampler")


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


def padded(decision: Configuration) -> dict[Modality, Excess]:
    """Per modality the corpus' items that give the encoder more than as many tokens of dummies."""
    counts = {m: count.value for m, count in decision.counts.items()}
    found = excesses(decision.table, decision.budget, decision.plain, counts)
    return {excess.modality: excess for excess in found}


def encoder_steps(decision: Configuration) -> tuple[EncoderStep, ...]:
    """Steps of such items, as many as one admits; no profile of vLLM's is one."""
    return tuple(EncoderStep(e.cost.shape, e.items) for e in padded(decision).values())


def shortfall(
    decision: Configuration, calibrated: Rehearsed, steps: Mapping[Modality, Rehearsed]
) -> Shortfall:
    """The costliest of what serving may take at once against what is reserved.

    `calibrated` has the peaks of `encoder_steps` where there are such.
    """
    return Shortfall(
        reserved_bytes=calibrated.activation_peak_bytes + calibrated.spare_bytes,
        worst=max(demands(decision, calibrated, steps), key=lambda demand: demand.nbytes),
        outside_bytes=calibrated.total_bytes - calibrated.requested_bytes,
        spare_bytes=calibrated.spare_bytes,
    )


def demands(
    decision: Configuration, calibrated: Rehearsed, steps: Mapping[Modality, Rehearsed]
) -> Iterator[Demand]:
    """Every part that may decide, encoder steps first."""
    budget, width = decision.budget, output_width(calibrated, steps)

    def beside(tokens: int) -> Resident:
        """The rest of a full cache, whose entries outlive their requests."""
        return Resident(max(0, budget.encoder_cache_size - tokens), width)

    for modality, step in steps.items():
        yield _worst(decision, modality, step, beside, calibrated.kept_bytes)
    excess = padded(decision)
    for found in calibrated.steps:
        of = excess.get(found.step.shape.modality)
        if found.peak_bytes is None or found.tokens is None or of is None:
            continue
        yield WorstStep(
            of.modality,
            found.tokens,
            found.peak_bytes,
            beside(found.tokens),
            found.step.items,
            of.cost.exemplar,
        )
    # What the profile's own outputs hold is part of its later peaks.
    held = calibrated.outputs.held_bytes if calibrated.outputs else 0
    profiled = max((p.peak_bytes for p in calibrated.phases if p.name in _LANGUAGE), default=0)
    if profiled:
        yield LanguageStep(budget.max_num_batched_tokens, profiled - held, beside(0))
    alone = min((one.phase.peak_bytes for one in calibrated.prefills), default=0)
    for one in calibrated.prefills:
        tokens, peak = budget.max_num_batched_tokens, one.phase.peak_bytes
        yield PromptsStep(tokens, peak, beside(0), one.prompts, alone, profiled)
    if calibrated.merge_peak_bytes is not None:
        tokens = min(budget.max_num_batched_tokens, budget.encoder_cache_size)
        yield Merge(tokens, calibrated.merge_peak_bytes, beside(0))


def output_width(calibrated: Rehearsed, steps: Mapping[Modality, Rehearsed]) -> int:
    """Bytes of one cached embedding; a profile that was skipped knows less than a worst step."""
    found = [one.outputs for one in (calibrated, *steps.values()) if one.outputs is not None]
    return max((outputs.bytes_per_token for outputs in found), default=0)


def _worst(
    decision: Configuration, modality: Modality, step: Rehearsed, beside: Any, kept_bytes: int
) -> WorstStep:
    """Scaled to a full step, which is no more than all sequences can ask for at once."""
    budget = decision.budget
    peak = next((phase.peak_bytes for phase in step.phases if phase.name == "encoder"), 0)
    most = budget.largest_item(modality)
    asked = budget.max_num_seqs * decision.counts[modality].value * most
    limit = min(budget.encoder_budget_tokens, asked)
    return worst_step(
        modality,
        peak,
        profiled_tokens=step.encoder_tokens,
        limit_tokens=limit,
        resident=beside(limit),
        kept_bytes=kept_bytes,
    )
