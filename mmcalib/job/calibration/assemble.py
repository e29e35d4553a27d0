"""Puts what the steps found into the one document that all outputs are rendered from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mmcalib.census.shapes import Modality
from mmcalib.derive.checks import Check, verdict
from mmcalib.derive.policy import Policy
from mmcalib.derive.spread import spread
from mmcalib.engine.messages import Budget, ModelOpened, Replayed
from mmcalib.geometry import ResolvedModel
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.calibration.evidence import evidence
from mmcalib.job.decision.decide import Decision
from mmcalib.job.gate.costs import costs
from mmcalib.job.gate.rules import Proven
from mmcalib.job.memory.fallback import by_formula
from mmcalib.job.memory.figures import encoder_budget, memory
from mmcalib.job.memory.predict import Predicted
from mmcalib.job.proof.burst import Burst
from mmcalib.job.proof.replay import mismatched
from mmcalib.job.proof.startup import Started
from mmcalib.job.read import Corpus
from mmcalib.report import calibration as c
from mmcalib.version import __version__


@dataclass(slots=True)
class Findings:
    """What is known so far; later steps fill in more."""

    resolved: ResolvedModel
    opened: ModelOpened
    corpus: Corpus
    decision: Decision
    policy: Policy
    skipped: int
    checks: list[Check] = field(default_factory=list)
    started: Started | None = None
    default_started: Started | None = None
    burst: Burst | None = None
    replayed: Replayed | None = None
    predicted: Predicted | None = None
    gpu: Gpu | None = None
    rules: Mapping[Modality, Proven] = field(default_factory=dict)


_UNFINISHED = Check(
    "run finished",
    "fail",
    "the run has not come to its end: later steps are missing here",
    "mmcalib run again, with --force",
)


def assemble(known: Findings, *, finished: bool = False) -> c.Calibration:
    """The calibration as far as it is known. An unfinished one says so, and its verdict is fail."""
    decision, opened = known.decision, known.opened
    checks = known.checks if finished else [*known.checks, _UNFINISHED]
    return c.Calibration(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=c.Tool(mmcalib=__version__, **opened.versions),
        model=c.Model(
            id=known.resolved.id,
            source=known.resolved.source,
            architecture=opened.architecture,
            doubts=list(known.resolved.notes),
        ),
        corpus=_corpus(known),
        limits=c.Limits(
            limit_mm_per_prompt=decision.engine_args["limit_mm_per_prompt"],
            mm_processor_kwargs=decision.engine_args.get("mm_processor_kwargs", {}),
            media_io_kwargs=decision.engine_args.get("media_io_kwargs", {}),
            evidence=list(evidence(decision, opened, known.policy, known.gpu)),
        ),
        engine_config=engine_config(known.resolved, decision.engine_args),
        budget=c.Budgets(
            default=encoder_budget(decision.default_budget),
            calibrated=encoder_budget(
                decision.budget, {m: count.value for m, count in decision.counts.items()}
            ),
        ),
        memory=_memories(known),
        frontier=[_point(known, index) for index in range(len(decision.explored))],
        startup=_startup(known),
        checks=[_check(check) for check in checks],
        verdict=verdict(checks),
        costs=costs(decision, known.policy, known.rules),
    )


def engine_config(resolved: ResolvedModel, engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """What engine.yaml says, under vLLM's argument names."""
    model = resolved.path if resolved.source == "local" else resolved.id
    return {"model": model, **engine_args}


def _check(check: Check) -> c.CheckResult:
    return c.CheckResult(
        name=check.name, status=check.status, detail=check.detail, remedy=check.remedy
    )


def _corpus(known: Findings) -> c.Corpus:
    table = known.decision.default_table
    modalities = {}
    for modality in table.modalities():
        costs = table.of(modality)
        found = spread(costs)
        heaviest = table.heaviest(modality)
        modalities[str(modality)] = c.ModalityItems(
            items=found.items,
            unique_shapes=found.unique_shapes,
            tokens=c.Tokens(
                min=found.min,
                p50=found.p50,
                p90=found.p90,
                p99=found.p99,
                max=found.max,
                exemplar=found.exemplar,
            ),
            heaviest=str(heaviest.shape) if heaviest else "",
        )
    return c.Corpus(
        items=sum(cost.count for cost in table.costs.values()),
        prompts=known.corpus.prompts.prompts(),
        skipped=known.skipped,
        modalities=modalities,
    )


def _memories(known: Findings) -> c.Memories:
    """As rehearsed where a GPU was named, else as measured in the starts: then weights and KV bytes
    per token are the model's and so the same, and each start has its peak.
    """
    default = _memory(known.default_started or known.started, own=known.default_started is not None)
    calibrated = _memory(known.started, own=True)
    if known.predicted is None:
        return c.Memories(default=default, calibrated=calibrated)
    predicted, gpu = known.predicted, known.predicted.gpu
    decision = known.decision

    def rough(budget: Budget, args: dict[str, Any]) -> c.Memory:
        path, problem = known.resolved.path, predicted.problem
        return by_formula(gpu, known.started, budget, args, path, problem)

    return c.Memories(
        default=memory(predicted.default, gpu)
        if predicted.default
        else rough(decision.default_budget, {}),
        calibrated=memory(predicted.calibrated, gpu)
        if predicted.calibrated
        else rough(decision.budget, decision.engine_args),
        measured=calibrated if known.started else None,
    )


def _memory(started: Started | None, *, own: bool) -> c.Memory:
    """`own`: whether the figures are of this very configuration, or only its weights are."""
    if started is None:
        return c.Memory(note="no engine was started")
    figures = started.figures
    cut = started.depths != started.true_depths
    scaled: c.Label = "computed" if cut else "measured"
    notes = ["weights and KV bytes scaled from the cut depth"] if cut else []
    labels: dict[str, c.Label] = {"weights_bytes": scaled, "kv_bytes_per_token": scaled}
    peak = figures.activation_peak_bytes if own else None
    if peak is not None:
        labels["activation_peak_bytes"] = "measured"
        notes.append(f"activation peak of {figures.device} kernels")
    return c.Memory(
        weights_bytes=figures.weights_full_bytes,
        kv_bytes_per_token=figures.kv_full_bytes_per_token,
        activation_peak_bytes=peak,
        label="measured" if peak is not None else scaled,
        labels=labels,
        note="; ".join(notes),
    )


def _point(known: Findings, index: int) -> c.FrontierPoint:
    explored = known.decision.explored[index]
    point, budget = explored.point, explored.budget
    rehearsed = known.predicted.points[index] if known.predicted else None
    kept = memory(rehearsed, known.predicted.gpu) if known.predicted and rehearsed else c.Memory()
    return c.FrontierPoint(
        knob=point.knob.name,
        modality=point.knob.modality,
        value=point.value,
        max_tokens=point.max_tokens,
        p50_tokens=point.p50_tokens,
        share_downscaled=round(point.share_downscaled, 6),
        worst_retention=round(point.worst_retention, 6),
        encoder_budget_tokens=budget.encoder_budget_tokens,
        profiled_items=budget.profiled_items,
        chosen=point in known.decision.chosen,
        activation_peak_bytes=kept.activation_peak_bytes,
        kv_cache_bytes=kept.kv_cache_bytes,
        kv_cache_tokens=kept.kv_cache_tokens,
        max_concurrency=kept.max_concurrency,
    )


def _startup(known: Findings) -> c.Startup | None:
    if known.started is None:
        return None
    figures = known.started.figures
    return c.Startup(
        device=figures.device,
        depth=known.started.depths,
        true_depth=known.started.true_depths,
        seconds=round(figures.start_s, 2),
        figures={
            "weights_bytes": figures.weights_bytes,
            "kv_bytes_per_token": figures.kv_bytes_per_token,
            "activation_peak_bytes": figures.activation_peak_bytes,
            "profile_s": figures.profile_s,
            "profile_estimate_s": figures.profile_estimate_s,
            "encoder_budget_tokens": figures.budget_tokens,
            "profiled_items": figures.profiled_items,
            "encoder_seconds_per_token": figures.encoder_seconds_per_token,
        },
        replay=_replay(known.burst, known.replayed),
    )


def _replay(burst: Burst | None, replayed: Replayed | None) -> c.ReplayResult | None:
    if burst is None or replayed is None:
        return None
    rejected: Sequence[str] = [answer.error for answer in replayed.answers if answer.error]
    return c.ReplayResult(
        prompts=len(burst.prompts),
        rejected=len(rejected),
        oom=sum("memory" in words.lower() for words in rejected),
        token_mismatches=len(mismatched(burst.prompts, replayed)),
        encoder_tokens=burst.encoder_tokens,
        largest_encoder_step_tokens=replayed.largest_encoder_step_tokens,
        left_out=burst.too_heavy,
        seconds=round(replayed.seconds, 2),
    )
