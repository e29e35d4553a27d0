"""Build calibration.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from mmcalib.admission.calibration import Calibration
from mmcalib.admission.rules import list_costs
from mmcalib.checks.check import verdict
from mmcalib.checks.engine import UNFINISHED
from mmcalib.checks.facts import Decision
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.shapes import AudioShape, Modality
from mmcalib.errors import MmcalibError
from mmcalib.gate.admission import ChatText, Gate, ShapeCost, fit_chat
from mmcalib.limits.costs import CostTable, mean_cpu_s, quantile
from mmcalib.limits.frontier import RatedPoint, find_dominated
from mmcalib.limits.values import compute_reserve
from mmcalib.prediction.predict import pool_evidence
from mmcalib.prediction.rehearse import Predicted, budget_figures, memory_figures
from mmcalib.proof.prove import Proof, Started, measured_memory, startup_figures
from mmcalib.results.calibration import (
    ChatItems,
    Conversation,
    FrontierPoint,
    Model,
    Preprocessing,
    YourConfiguration,
)
from mmcalib.results.memory import Budgets, Memories, Memory
from mmcalib.results.part import CheckResult
from mmcalib.version import __version__
from mmcalib.workflows.corpus import corpus_figures
from mmcalib.workflows.run.evidence import add_effects, cache_report, evidence
from mmcalib.workflows.run.session import Session
from mmcalib.workflows.run.stages import PredictedMemory, Review


def frontier_points(decision: Decision, predicted: Predicted | None) -> Iterator[FrontierPoint]:
    """Yield the explored points in their order, with their memory on the GPU."""
    points = predicted.points if predicted else (None,) * len(decision.explored)
    memories = [
        memory_figures(one, predicted.gpu) if predicted and one else Memory() for one in points
    ]
    pairs = list(zip(decision.explored, memories, strict=True))
    rated = [
        RatedPoint(e.point, e.budget.encoder_budget_tokens, m.kv_cache_tokens) for e, m in pairs
    ]
    chosen = {(point.knob.name, point.value) for point in decision.chosen}
    for (explored, memory), is_beaten in zip(pairs, find_dominated(rated), strict=True):
        point, budget, cache = explored.point, explored.budget, explored.budget.encoder_cache_size
        is_chosen = (point.knob.name, point.value) in chosen
        yield FrontierPoint.from_value(
            *(point, point.knob, budget, memory),
            knob=point.knob.name,
            adequacy=round(compute_reserve(budget, decision.items_per_prompt).ratio, 4),
            resident_items=cache // point.max_embeds if point.max_embeds else None,
            choice="chosen" if is_chosen else "beaten" if is_beaten else "open",
            label="computed" if point.counted else "measured",
        )


def build_calibration(
    session: Session,
    reviewed: Review,
    proof: Proof | None = None,
    memory_found: PredictedMemory | None = None,
) -> Calibration:
    """Build the calibration from the stages so far; until the last one its verdict is fail."""
    job, decided, proof = session.job, reviewed.derived, proof or Proof()
    prepared, decision = decided.prepared, decided.decision
    opened, resolved = prepared.opened, prepared.resolved
    unfinished = PredictedMemory(None, (*reviewed.checks, *proof.checks, UNFINISHED))
    memory, gpu = memory_found or unfinished, job.gpu
    checks, predicted, pool = memory.checks, memory.predicted, memory.pool
    cpu = mean_cpu_s(decision.table)
    timed = Preprocessing(cpu_s_per_item=round(cpu[0], 6), measured_files=cpu[1]) if cpu else None
    engine_config = {**decided.engine_config, **(pool.values if pool else {})}
    policy, rules, texts = job.policy, reviewed.rules, prepared.texts
    default = decision.default_table
    reasons = evidence(decision, opened, policy, gpu, session.given)
    yours = None
    if (own := session.yours) is not None:
        yours = YourConfiguration(
            file=str(own.written.source or ""),
            engine_config=dict(own.engine_args),
            diff=own.written.diff(engine_config, own.values),
            refused=decided.refused_yours,
        )
    calibration = Calibration(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tool={"mmcalib": __version__, **opened.versions},
        model=Model.from_value(resolved, architecture=opened.architecture, doubts=resolved.notes),
        corpus=corpus_figures(
            default, prepared.corpus, len(decided.skipped), decision.table, reviewed.least_kept
        ),
        evidence=[
            *add_effects(reasons, decision.effects),
            *(pool_evidence(pool, gpu.name) if pool and gpu else ()),
        ],
        engine_config=engine_config,
        default_config=session.default_args,
        yours=yours,
        budget=Budgets(
            default=budget_figures(decision.default_budget, table=decision.default_table),
            calibrated=budget_figures(decision.budget, decision.adequacy, decision.table),
            yours=decided.budget_yours,
        ),
        memory=_memories(proof.started, predicted, memory.yours),
        frontier=list(frontier_points(decision, predicted)),
        startup=startup_figures(proof),
        checks=list(map(CheckResult.from_value, checks)),
        verdict=verdict(checks),
        costs=list_costs(decision, policy, rules, texts, encoder_decoder=opened.encoder_decoder),
        cache=cache_report(decision),
        preprocessing=timed,
        traffic=memory.traffic,
        server=opened.server,
        counted_by=opened.counted_by,
        needed=dict(reviewed.environment),
    )
    chats = _conversations(calibration.gate, decision.table, decided.chats)
    return calibration.model_copy(update={"conversations": dict(chats)})


def _conversations(
    gate: Gate, table: CostTable, chats: Mapping[Modality, ChatText]
) -> Iterator[tuple[str, Conversation]]:
    """Yield for each served modality the chats of its median and its largest items."""
    for modality, text in chats.items():
        costs = table.columns_of(modality)
        median = quantile(costs.tokens, costs.counts, 0.5)
        items = []
        for item in (costs.take(costs.tokens == median)[0], costs.heaviest):
            assert item is not None
            cost, shape = ShapeCost(item.tokens, item.embeds, "counted"), item.shape
            fit = fit_chat(gate, shape, cost, text)
            sound_s = fit.items * shape.duration_s if isinstance(shape, AudioShape) else None
            items.append(ChatItems.from_value(fit, item, shape=str(shape), sound_s=sound_s))
        both = {"typical": items[0], "largest": items[1]}
        label = "assumed" if text.assumed else "computed"
        yield modality, Conversation.from_value(text, label=label, **both)


def _memories(
    started: Started | None,
    predicted: Predicted | None,
    yours: RehearsedMemory | MmcalibError | None = None,
) -> Memories:
    """Return the memory as rehearsed on the named GPU, else as measured at the engine's start."""
    # By default only the peak differs: weights and KV bytes per token are the same.
    measured = measured_memory(started, own=True)
    if predicted is None:
        return Memories(default=measured_memory(started, own=False), calibrated=measured)
    gpu, failure = predicted.gpu, f"not rehearsed: {predicted.failure}"

    def figures(found: RehearsedMemory | MmcalibError | None) -> Memory:
        if isinstance(found, RehearsedMemory):
            return memory_figures(found, gpu)
        return Memory(gpu=gpu.name, note=failure if found is None else str(found))

    return Memories(
        default=figures(predicted.default),
        calibrated=figures(predicted.calibrated),
        yours=None if yours is None else figures(yours),
        measured=measured if started else None,
    )
