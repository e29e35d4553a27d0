"""Puts what the steps found into the one document that all outputs are rendered from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mmcalib.checks.catalogue.engine import RUN_FINISHED
from mmcalib.checks.check import Check, verdict
from mmcalib.derive.policy import Policy
from mmcalib.domain.budget import Budget
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import Replayed
from mmcalib.geometry import ResolvedModel
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.calibration.cache import cache_report
from mmcalib.job.calibration.encoder_sweep import encoder_sweep
from mmcalib.job.calibration.evidence import evidence, with_effects
from mmcalib.job.calibration.frontier import frontier_points
from mmcalib.job.calibration.throughput import throughput
from mmcalib.job.corpus_figures import corpus_figures
from mmcalib.job.decision.decision import Decision
from mmcalib.job.decision.texts import Texts
from mmcalib.job.gate.calibration import Calibration
from mmcalib.job.gate.costs import costs
from mmcalib.job.gate.rules import Proven
from mmcalib.job.memory.fallback import by_formula
from mmcalib.job.memory.figures import encoder_budget, memory
from mmcalib.job.memory.predicted import Predicted
from mmcalib.job.memory.sizes import RehearsedSizes
from mmcalib.job.proof.burst import Burst
from mmcalib.job.proof.figures import measured_memory, startup_figures
from mmcalib.job.proof.processor_device import Comparison, processor_device
from mmcalib.job.proof.startup import Started
from mmcalib.job.proof.sweep import Sweep
from mmcalib.job.read import Corpus
from mmcalib.result.budget import Budgets
from mmcalib.result.calibration import Limits, Model, Tool
from mmcalib.result.check_result import CheckResult
from mmcalib.result.memory import Memories, Memory
from mmcalib.result.server import ServerPart
from mmcalib.version import __version__


@dataclass(slots=True)
class Findings:
    """What is known so far; later steps fill in more."""

    resolved: ResolvedModel
    opened: ModelInfo
    corpus: Corpus
    decision: Decision
    policy: Policy
    skipped: int
    checks: list[Check] = field(default_factory=list)
    started: Started | None = None
    default_started: Started | None = None
    burst: Burst | None = None
    replayed: Replayed | None = None
    sweep: Sweep | None = None
    rehearsed_sizes: RehearsedSizes = field(default_factory=dict)
    predicted: Predicted | None = None
    gpu: Gpu | None = None
    rules: Mapping[Modality, Proven] = field(default_factory=dict)
    compared: Comparison | None = None
    needed: dict[str, int] = field(default_factory=dict)
    texts: Texts | None = None


_UNFINISHED = Check(
    RUN_FINISHED,
    "fail",
    "the run has not come to its end: later steps are missing here",
    "mmcalib run again, with --force",
)


def assemble(known: Findings, *, finished: bool = False) -> Calibration:
    """The calibration as far as it is known. An unfinished one says so, and its verdict is fail."""
    decision, opened = known.decision, known.opened
    checks = known.checks if finished else [*known.checks, _UNFINISHED]
    return Calibration(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=Tool(mmcalib=__version__, **opened.versions),
        model=Model(
            id=known.resolved.id,
            source=known.resolved.source,
            architecture=opened.architecture,
            doubts=list(known.resolved.notes),
        ),
        corpus=corpus_figures(
            decision.default_table, known.corpus.prompts.prompts(), known.skipped
        ),
        limits=Limits(
            limit_mm_per_prompt=decision.engine_args["limit_mm_per_prompt"],
            mm_processor_kwargs=decision.engine_args.get("mm_processor_kwargs", {}),
            media_io_kwargs=decision.engine_args.get("media_io_kwargs", {}),
            evidence=list(
                with_effects(evidence(decision, opened, known.policy, known.gpu), decision.effects)
            ),
        ),
        engine_config=engine_config(known.resolved, decision.engine_args),
        budget=Budgets(
            default=encoder_budget(decision.default_budget, table=decision.default_table),
            calibrated=encoder_budget(
                decision.budget,
                {m: count.value for m, count in decision.counts.items()},
                decision.table,
            ),
        ),
        memory=_memories(known),
        frontier=frontier_points(decision, known.predicted),
        startup=startup_figures(known.started, known.burst, known.replayed),
        checks=list(map(CheckResult.of, checks)),
        verdict=verdict(checks),
        costs=costs(
            decision,
            known.policy,
            known.rules,
            known.texts,
            encoder_decoder=opened.encoder_decoder,
        ),
        cache=cache_report(decision),
        encoder_sweep=encoder_sweep(
            known.sweep, known.started, decision, known.rehearsed_sizes, known.gpu
        ),
        processor_device=processor_device(known.compared),
        throughput=throughput(decision.table, known.sweep, known.started),
        server=ServerPart.of(opened.server, known.needed),
    )


def engine_config(resolved: ResolvedModel, engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """What engine.yaml says, under vLLM's argument names."""
    model = resolved.path if resolved.source == "local" else resolved.id
    return {"model": model, **engine_args}


def _memories(known: Findings) -> Memories:
    """As rehearsed where a GPU was named, else as measured in the starts: then weights and KV bytes
    per token are the model's and so the same, and each start has its peak.
    """
    own = known.default_started is not None
    default = measured_memory(known.default_started or known.started, own=own)
    calibrated = measured_memory(known.started, own=True)
    if known.predicted is None:
        return Memories(default=default, calibrated=calibrated)
    predicted, gpu = known.predicted, known.predicted.gpu
    decision = known.decision

    def rough(budget: Budget, args: dict[str, Any]) -> Memory:
        path, problem = known.resolved.path, str(predicted.failure)
        return by_formula(gpu, known.started, budget, args, path, problem)

    return Memories(
        default=memory(predicted.default, gpu)
        if predicted.default
        else rough(decision.default_budget, {}),
        calibrated=memory(predicted.calibrated, gpu)
        if predicted.calibrated
        else rough(decision.budget, decision.engine_args),
        measured=calibrated if known.started else None,
    )
