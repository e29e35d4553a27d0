"""Memory figures for documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from mmcalib.derive.costs import CostTable
from mmcalib.derive.limits import ProfileReserve, compute_reserve, resident_items
from mmcalib.domain.knobs import Label
from mmcalib.domain.memory import Budget, RehearsedMemory
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.releases.constants import UNIFIED_NON_TORCH_BYTES
from mmcalib.results.memory import EncoderBudget, Memory, Rehearsal
from mmcalib.version import __version__

# Labels of the figures in a rehearsal that are not rehearsed.
_LABELS: Final[dict[str, Label]] = {
    **dict.fromkeys(("non_torch_bytes", "cudagraph_bytes"), "assumed"),
    **dict.fromkeys(("kv_cache_bytes", "kv_cache_tokens"), "computed"),
    **dict.fromkeys(("max_concurrency", "encoder_cache_bytes", "outside_bytes"), "computed"),
    **dict.fromkeys(("most_utilization", "starts", "stack_bytes"), "computed"),
    "free_bytes": "assumed",
}


def memory_figures(result: RehearsedMemory, gpu: Gpu) -> Memory:
    """Return a memory entry of calibration.json, each figure with its label."""
    phases = {phase.name: phase.peak_bytes for phase in result.phases}
    if result.prefill is not None:
        phases["language model, served"] = result.prefill.phase.peak_bytes
    total: Label = "given" if gpu.total_status == "given" else "assumed"
    most = result.max_concurrency
    room, (low, high) = result.kv_cache_bytes + result.non_torch_bytes, UNIFIED_NON_TORCH_BYTES
    return Memory.from_value(
        result,
        phases=phases,
        mode="extensible" if result.division.is_extensible else "profiled",
        max_concurrency=None if most is None else round(most, 2),
        label="rehearsed",
        kv_cache_range_bytes=(room - high, room - low) if gpu.unified else None,
        labels={
            "total_bytes": total,
            **_LABELS,
            **({} if gpu.free_bytes is None else {"free_bytes": "given"}),
        },
        gpu=gpu.name,
        ranks=result.tensor_parallel_size,
        note=result.start_problem or result.problem,
    )


def budget_figures(
    budget: Budget, reserve: ProfileReserve | None = None, table: CostTable | None = None
) -> EncoderBudget:
    """Return vLLM's MultiModalBudget for reports, with the reserve and residency by `table`."""
    resident = resident_items(table, budget) if table else ()
    return EncoderBudget.from_value(
        budget,
        profiled_tokens=reserve.profiled_tokens if reserve else None,
        worst_step_tokens=reserve.worst_step_tokens if reserve else None,
        resident_items={r.modality: r.items for r in resident},
    )


def rehearsed_adequacy(result: RehearsedMemory, budget: Budget) -> ProfileReserve:
    """Return the reserve in tokens: the profile against the largest step that is admitted."""
    unprofiled = replace(budget, profiled_modality=None)
    worst = compute_reserve(unprofiled, budget.max_items_per_prompt).worst_step_tokens
    if not budget.max_tokens_per_item:  # Embeddings alone may fill the budget.
        worst = budget.encoder_budget_tokens
    return ProfileReserve(result.encoder_tokens, worst)


def rehearsal_document(
    result: RehearsedMemory, model: ResolvedModel, gpu: Gpu, config: Path | None
) -> Rehearsal:
    """Return the document of one rehearsal."""
    budget = result.budget
    return Rehearsal.from_value(
        result,
        mmcalib=__version__,
        model=model.id,
        source=model.source,
        config="" if config is None else str(config),
        gpu=gpu.name,
        capability=gpu.compute_capability,
        starts=result.starts,
        memory=memory_figures(result, gpu),
        budget=budget_figures(budget, rehearsed_adequacy(result, budget)) if budget else None,
        max_model_len=budget.max_model_len if budget else None,
        assumptions=[*result.assumptions, *model.notes],
        seconds=round(result.seconds, 2),
    )
