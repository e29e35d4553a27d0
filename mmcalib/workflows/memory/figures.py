"""From a rehearsal's figures to what the reports show of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mmcalib.derive.costs import CostTable
from mmcalib.derive.limits import Adequacy, adequacy, residencies
from mmcalib.domain.budget import Budget
from mmcalib.domain.label import Label
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.shapes import Modality
from mmcalib.gpus.gpu import Gpu
from mmcalib.models import ResolvedModel
from mmcalib.results.memory import EncoderBudget, Memory, Phase, Rehearsal
from mmcalib.version import __version__
from mmcalib.workflows.memory.cross_check import disagreement, estimate_bytes

_ASSUMED: Final = ("non_torch_bytes", "cudagraph_bytes")
_COMPUTED: Final = ("kv_cache_bytes", "kv_cache_tokens", "max_concurrency", "encoder_cache_bytes")


def memory(found: Rehearsed, gpu: Gpu) -> Memory:
    """The keys of calibration.json's memory entries, each with its label."""
    peaks = {phase.name: phase.peak_bytes for phase in found.phases}
    assumed: dict[str, Label] = dict.fromkeys(_ASSUMED, "assumed")
    computed: dict[str, Label] = dict.fromkeys(_COMPUTED, "computed")
    total: Label = "given" if gpu.total_status == "given" else "assumed"
    return Memory(
        total_bytes=found.total_bytes,
        requested_bytes=found.requested_bytes,
        weights_bytes=found.weights_bytes,
        buffers_bytes=found.buffers_bytes,
        encoder_peak_bytes=peaks.get("encoder"),
        language_model_peak_bytes=peaks.get("language model"),
        prefill_peak_bytes=found.prefill.phase.peak_bytes if found.prefill else None,
        sampler_peak_bytes=peaks.get("sampler"),
        encoder_cache_bytes=found.encoder_cache_bytes,
        activation_peak_bytes=found.activation_peak_bytes,
        non_torch_bytes=found.non_torch_bytes,
        cudagraph_bytes=found.cudagraph_bytes,
        kv_cache_bytes=found.kv_cache_bytes,
        kv_cache_tokens=found.kv_cache_tokens,
        kv_bytes_per_token=found.kv_bytes_per_token,
        max_concurrency=None if found.max_concurrency is None else round(found.max_concurrency, 2),
        label="rehearsed",
        labels={"total_bytes": total, **assumed, **computed},
        gpu=gpu.name,
        ranks=found.tensor_parallel_size,
        note=found.problem,
    )


def encoder_budget(
    budget: Budget,
    counts: Mapping[Modality, int] | None = None,
    table: CostTable | None = None,
) -> EncoderBudget:
    """vLLM's MultiModalBudget as the reports show it. Adequacy is computed for `counts` items per
    prompt, which needs a budget whose dummies were built; residency for the items of `table`.
    """
    found = adequacy(budget, counts) if counts is not None else None
    return EncoderBudget(
        encoder_budget_tokens=budget.encoder_budget_tokens,
        max_tokens_per_item={str(m): n for m, n in budget.max_tokens_per_item.items()},
        items_per_batch={str(m): n for m, n in budget.max_items_per_batch.items()},
        profiled_modality=budget.profiled_modality,
        profiled_items=budget.profiled_items,
        profiled_tokens=found.profiled_tokens if found else None,
        worst_step_tokens=found.worst_step_tokens if found else None,
        adequacy=round(found.ratio, 4) if found else None,
        max_num_batched_tokens=budget.max_num_batched_tokens,
        max_model_len=budget.max_model_len,
        resident_items={r.modality: r.items for r in residencies(table, budget)} if table else {},
    )


def rehearsed_adequacy(found: Rehearsed, budget: Budget) -> Adequacy:
    """R4 in tokens: the embeddings that the profile made against those of a step of as many items
    as the configuration admits. Where it takes embeddings alone, those that stay.
    """
    unprofiled = replace(budget, profiled_modality=None)
    worst = adequacy(unprofiled, budget.max_items_per_prompt).worst_step_tokens
    if not budget.max_tokens_per_item:
        worst = budget.encoder_budget_tokens
    return Adequacy(found.encoder_tokens, worst)


def _rehearsed_budget(found: Rehearsed) -> EncoderBudget | None:
    if found.budget is None:
        return None
    tokens = rehearsed_adequacy(found, found.budget)
    return encoder_budget(found.budget).model_copy(
        update={
            "profiled_tokens": tokens.profiled_tokens,
            "worst_step_tokens": tokens.worst_step_tokens,
            "adequacy": round(tokens.ratio, 4),
        }
    )


def rehearsal(found: Rehearsed, model: ResolvedModel, gpu: Gpu, config: Path | None) -> Rehearsal:
    """Everything that one rehearsal found, ready to be shown or saved."""
    return Rehearsal(
        mmcalib=__version__,
        vllm=found.vllm,
        model=model.id,
        source=model.source,
        config="" if config is None else str(config),
        gpu=gpu.name,
        capability=".".join(map(str, gpu.capability or ())),
        runner=found.runner,
        sampler=found.sampler,
        attention=found.attention,
        encoder_attention=found.encoder_attention,
        dtype=found.dtype,
        tensor_parallel_size=found.tensor_parallel_size,
        starts=found.kv_cache_tokens is not None,
        memory=memory(found, gpu),
        budget=_rehearsed_budget(found),
        phases=[Phase.showing(phase) for phase in found.phases],
        encoder_estimate_bytes=estimate_bytes(found.budget, model.path),
        cross_check=disagreement(found, model.path),
        assumptions=[*found.assumptions, *model.notes],
        seconds=round(found.seconds, 2),
    )
