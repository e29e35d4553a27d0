"""Puts what the steps found into the one document that all outputs are rendered from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mmcalib.checks.check import Check, verdict
from mmcalib.checks.reserve import RUN_FINISHED
from mmcalib.derive.costs import CostTable
from mmcalib.derive.preprocessing import mean_cpu_s
from mmcalib.domain.budget import Budget
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.errors import MmcalibError
from mmcalib.results.calibration import (
    Limits,
    Model,
    Preprocessing,
    ServerPart,
    Tool,
    YourConfiguration,
)
from mmcalib.results.memory import Budgets, Memories, Memory
from mmcalib.results.part import CheckResult
from mmcalib.version import __version__
from mmcalib.workflows.calibration.cache import cache_report
from mmcalib.workflows.calibration.decided import Decided
from mmcalib.workflows.calibration.evidence import evidence, with_effects
from mmcalib.workflows.calibration.frontier import frontier_points
from mmcalib.workflows.calibration.given import default_args
from mmcalib.workflows.calibration.memory_found import MemoryFound
from mmcalib.workflows.calibration.proven import Proven
from mmcalib.workflows.calibration.reviewed import Reviewed
from mmcalib.workflows.corpus_figures import corpus_figures
from mmcalib.workflows.gate.calibration import Calibration
from mmcalib.workflows.gate.costs import costs
from mmcalib.workflows.memory.fallback import by_formula
from mmcalib.workflows.memory.figures import encoder_budget, memory
from mmcalib.workflows.memory.pinned import pinned_evidence
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.proof.figures import measured_memory, startup_figures
from mmcalib.workflows.spec import Job

_UNFINISHED = Check(
    RUN_FINISHED,
    "fail",
    "the run has not come to its end: later steps are missing here",
    "mmcalib run again, with --force",
)


def assemble(
    job: Job,
    reviewed: Reviewed,
    proven: Proven | None = None,
    memory_found: MemoryFound | None = None,
) -> Calibration:
    """The calibration as far as it is known. An unfinished one, which is all before the last stage,
    says so, and its verdict is fail.
    """
    decided, proven = reviewed.decided, proven or Proven()
    served, decision, proof = decided.served, decided.decision, proven.proof
    opened = served.opened
    checks = (*reviewed.checks, *proven.checks, _UNFINISHED)
    if memory_found is not None:
        checks = memory_found.checks
    predicted = memory_found.predicted if memory_found else None
    pool, gpu = memory_found.pool if memory_found else None, job.gpu
    engine_config = pool.on(decided.engine_config) if pool else decided.engine_config
    return Calibration(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=Tool(mmcalib=__version__, **opened.versions),
        model=Model(
            id=served.resolved.id,
            source=served.resolved.source,
            architecture=opened.architecture,
            doubts=list(served.resolved.notes),
        ),
        corpus=corpus_figures(
            decision.default_table,
            served.corpus.prompts.prompts(),
            len(decided.skipped),
            decision.table,
        ),
        limits=Limits(
            limit_mm_per_prompt=decision.engine_args["limit_mm_per_prompt"],
            mm_processor_kwargs=decision.engine_args.get("mm_processor_kwargs", {}),
            media_io_kwargs=decision.engine_args.get("media_io_kwargs", {}),
            evidence=[
                *with_effects(
                    evidence(decision, opened, job.policy, gpu, decided.given), decision.effects
                ),
                *(pinned_evidence(pool, gpu.name) if pool and gpu else ()),
            ],
        ),
        engine_config=engine_config,
        default_config=default_args(job.policy, decided.given),
        yours=_yours(decided, engine_config),
        budget=Budgets(
            default=encoder_budget(decision.default_budget, table=decision.default_table),
            calibrated=encoder_budget(
                decision.budget,
                {m: count.value for m, count in decision.counts.items()},
                decision.table,
            ),
            yours=decided.budget_yours,
        ),
        memory=_memories(decided, proven, predicted, memory_found.yours if memory_found else None),
        frontier=frontier_points(decision, predicted),
        startup=startup_figures(proof.started, proof.burst, proof.replayed),
        checks=list(map(CheckResult.showing, checks)),
        verdict=verdict(checks),
        costs=costs(
            decision,
            job.policy,
            reviewed.rules,
            decided.served.texts,
            encoder_decoder=opened.encoder_decoder,
        ),
        cache=cache_report(decision),
        preprocessing=_preprocessing(decision.table),
        traffic=memory_found.traffic if memory_found else None,
        server=ServerPart.of(opened.server, dict(reviewed.needed)),
    )


def _preprocessing(table: CostTable) -> Preprocessing | None:
    found = mean_cpu_s(table)
    if found is None:
        return None
    return Preprocessing(cpu_s_per_item=round(found[0], 6), measured_files=found[1])


def _yours(decided: Decided, engine_config: Mapping[str, Any]) -> YourConfiguration | None:
    found = decided.yours
    if found is None:
        return None
    return YourConfiguration(
        file=str(found.written.source or ""),
        engine_config=dict(found.engine_args),
        compared=found.compared,
        diff=found.written.diff(engine_config, found.values),
        refused=decided.refused_yours,
    )


def _memories(
    decided: Decided,
    proven: Proven,
    predicted: Predicted | None,
    yours: Rehearsed | MmcalibError | None = None,
) -> Memories:
    """As rehearsed where a GPU was named, else as measured in the start: then weights and KV bytes
    per token are the model's and so the same, and the peak is the calibrated configuration's.
    """
    started = proven.proof.started
    default = measured_memory(started, own=False)
    calibrated = measured_memory(started, own=True)
    if predicted is None:
        return Memories(default=default, calibrated=calibrated)
    gpu, decision = predicted.gpu, decided.decision
    path, problem = decided.served.resolved.path, str(predicted.failure)

    unrehearsed = Memory(gpu=gpu.name, note=str(yours)) if yours is not None else None

    def rough(budget: Budget, args: dict[str, Any]) -> Memory:
        return by_formula(gpu, started, budget, args, path, problem)

    return Memories(
        default=memory(predicted.default, gpu)
        if predicted.default
        else rough(decision.default_budget, {}),
        calibrated=memory(predicted.calibrated, gpu)
        if predicted.calibrated
        else rough(decision.budget, decision.engine_args),
        yours=memory(yours, gpu) if isinstance(yours, Rehearsed) else unrehearsed,
        measured=calibrated if started else None,
    )
