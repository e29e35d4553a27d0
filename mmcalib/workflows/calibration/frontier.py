"""The frontier as the reports have it: every point with its figures, the beaten ones marked."""

from __future__ import annotations

from mmcalib.derive.frontier import Rated, dominated
from mmcalib.derive.limits import adequacy
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.results.calibration import FrontierPoint
from mmcalib.results.memory import Memory
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.explore import Explored
from mmcalib.workflows.memory.figures import memory
from mmcalib.workflows.memory.predicted import Predicted


def frontier_points(decision: Decision, predicted: Predicted | None) -> list[FrontierPoint]:
    """In the order in which they were explored."""
    kept = [Memory() for _ in decision.explored]
    if predicted is not None:
        kept = [_memory(found, predicted) for found in predicted.points]
    pairs = list(zip(decision.explored, kept, strict=True))
    rated = [Rated(e.point, e.budget.encoder_budget_tokens, m.kv_cache_tokens) for e, m in pairs]
    return [
        _point(decision, explored, figures, beaten)
        for (explored, figures), beaten in zip(pairs, dominated(rated), strict=True)
    ]


def _memory(rehearsed: Rehearsed | None, predicted: Predicted) -> Memory:
    return memory(rehearsed, predicted.gpu) if rehearsed else Memory()


def _point(decision: Decision, explored: Explored, figures: Memory, beaten: bool) -> FrontierPoint:
    point, budget = explored.point, explored.budget
    counts = {modality: count.value for modality, count in decision.counts.items()}
    return FrontierPoint(
        knob=point.knob.name,
        modality=point.knob.modality,
        value=point.value,
        max_tokens=point.max_tokens,
        p99_tokens=point.p99_tokens,
        p50_tokens=point.p50_tokens,
        share_downscaled=round(point.share_downscaled, 6),
        mean_retention=round(point.mean_retention, 6),
        worst_retention=round(point.worst_retention, 6),
        process_s=round(point.process_s, 6),
        encoder_budget_tokens=budget.encoder_budget_tokens,
        profiled_items=budget.profiled_items,
        adequacy=round(adequacy(budget, counts).ratio, 4),
        resident_items=budget.encoder_cache_size // point.max_embeds if point.max_embeds else None,
        chosen=(point.knob.name, point.value) in {(p.knob.name, p.value) for p in decision.chosen},
        dominated=beaten,
        bleeds=list(point.knob.bleeds),
        activation_peak_bytes=figures.activation_peak_bytes,
        kv_cache_bytes=figures.kv_cache_bytes,
        kv_cache_tokens=figures.kv_cache_tokens,
        max_concurrency=figures.max_concurrency,
        label="computed" if point.counted else "measured",
    )
