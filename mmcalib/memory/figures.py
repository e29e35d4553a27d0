"""Memory figures for documents, and a formula for figures without a rehearsal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mmcalib.derive.costs import CostTable
from mmcalib.derive.limits import ProfileReserve, compute_reserve, resident_items
from mmcalib.domain.knobs import Label
from mmcalib.domain.memory import Budget, RehearsedMemory
from mmcalib.models.cut import read_config
from mmcalib.models.encoder import encoder_of
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.proof.start import Started
from mmcalib.releases.constants import GPU_MEMORY_UTILIZATION, UNIFIED_NON_TORCH_BYTES
from mmcalib.results.memory import EncoderBudget, Memory, Rehearsal
from mmcalib.version import __version__


def estimate_bytes(budget: Budget | None, model_path: str) -> int | None:
    """Estimate the peak of vLLM's profile from the checkpoint's config; None without a formula."""
    if budget is None or budget.profiled_modality is None:
        return None
    encoder = encoder_of(read_config(Path(model_path)), budget.profiled_modality)
    if encoder is None:
        return None
    tokens = budget.max_tokens_per_item[budget.profiled_modality]
    # A position makes at most one token, so the config does not name all tiles.
    if encoder.per_tile and tokens > encoder.tiles * encoder.per_tile:
        return None
    return encoder.peak_bytes(budget.profiled_items, tokens)


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
    return Memory.from_value(
        result,
        phases=phases,
        max_concurrency=None if most is None else round(most, 2),
        label="rehearsed",
        kv_cache_range_bytes=_kv_cache_range(result, gpu),
        labels={
            "total_bytes": total,
            **_LABELS,
            **({} if gpu.free_bytes is None else {"free_bytes": "given"}),
        },
        gpu=gpu.name,
        ranks=result.tensor_parallel_size,
        note=result.start_problem or result.problem,
    )


def _kv_cache_range(result: RehearsedMemory, gpu: Gpu) -> tuple[int, int] | None:
    if not gpu.unified:
        return None
    room, (least, most) = result.kv_cache_bytes + result.non_torch_bytes, UNIFIED_NON_TORCH_BYTES
    return room - most, room - least


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


# Kernels, CUDA graphs, buffers, language model, sampler: rehearsals of bundled models, rounded up.
ALLOWANCE_BYTES: Final = 3 << 29


def memory_by_formula(
    gpu: Gpu,
    started: Started | None,
    budget: Budget,
    engine_args: dict[str, Any],
    model_path: str,
    problem: str,
) -> Memory:
    """Estimate from the engine's start and the encoder's widths; without a start, only note why."""
    note = f"not rehearsed: {problem}"
    peak = estimate_bytes(budget, model_path)
    if started is None or peak is None:
        return Memory(gpu=gpu.name, note=note)
    weights = started.figures.weights_full_bytes
    share = engine_args.get("gpu_memory_utilization", GPU_MEMORY_UTILIZATION)
    requested = int(share * gpu.total_bytes)
    kv_cache_bytes = requested - weights - peak - ALLOWANCE_BYTES
    per_token = started.figures.kv_full_bytes_per_token
    return Memory(
        total_bytes=gpu.total_bytes,
        requested_bytes=requested,
        weights_bytes=weights,
        buffers_bytes=ALLOWANCE_BYTES,
        phases={"encoder": peak},
        activation_peak_bytes=peak,
        kv_cache_bytes=kv_cache_bytes,
        kv_cache_tokens=kv_cache_bytes // per_token if kv_cache_bytes > 0 else None,
        kv_bytes_per_token=per_token,
        label="computed",
        labels={"buffers_bytes": "assumed", "total_bytes": "assumed"},
        gpu=gpu.name,
        note=f"by formula, {note}",
    )
