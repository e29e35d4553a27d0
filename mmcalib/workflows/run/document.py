"""Build calibration.json, with the reason for each setting's value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from mmcalib.admission.calibration import Calibration
from mmcalib.admission.rules import list_costs
from mmcalib.checks.check import verdict
from mmcalib.checks.engine import UNFINISHED
from mmcalib.checks.facts import Decision
from mmcalib.checks.options import cache_reason
from mmcalib.domain.knobs import Label
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import AudioShape, Modality
from mmcalib.errors import MmcalibError
from mmcalib.gate.admission import ChatText, Gate, ShapeCost, fit_chat
from mmcalib.limits.costs import CostTable, mean_cpu_s, quantile
from mmcalib.limits.effects import Effect
from mmcalib.limits.frontier import Point, RatedPoint, find_dominated
from mmcalib.limits.policy import FIT, Policy
from mmcalib.limits.processor_cache import SizedCache, UnsizedCache
from mmcalib.limits.values import CACHE, compute_reserve
from mmcalib.models.gpus import Gpu
from mmcalib.prediction.predict import pool_evidence
from mmcalib.prediction.rehearse import Predicted, budget_figures, memory_figures
from mmcalib.proof.prove import Proof, Started, measured_memory, startup_figures
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.results.calibration import (
    ChatItems,
    Conversation,
    Evidence,
    FrontierPoint,
    Model,
    Preprocessing,
    ProcessorCache,
    YourConfiguration,
)
from mmcalib.results.memory import Budgets, Memories, Memory
from mmcalib.results.part import CheckResult
from mmcalib.text import GIB, flag, plural
from mmcalib.version import __version__
from mmcalib.workflows.corpus import corpus_figures
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


# Points of the hit curve in the document: enough to draw it.
_POINTS = 32


def cache_evidence(decision: Decision) -> Iterator[Evidence]:
    cache = decision.cache
    if isinstance(cache, UnsizedCache):
        return
    yield Evidence(
        setting=CACHE,
        value=cache.mm_processor_cache_gb,
        label="computed",
        reason=cache_reason(cache),
        exemplar=cache.often if isinstance(cache, SizedCache) and cache.times > 1 else "",
    )


def cache_report(decision: Decision) -> ProcessorCache | None:
    """Return the processor cache for `calibration.json`, or None if it was not sized."""
    cache = decision.cache
    if not isinstance(cache, SizedCache):
        return None
    curve, size = cache.curve, cache.size
    wanted = size.wanted_gib, round(size.wanted_hit_rate, 6)
    return ProcessorCache.from_value(
        cache,
        accesses=curve.accesses,
        hit_rate=round(size.hit_rate, 6),
        default_hit_rate=round(curve.rate_at(PROCESSOR_CACHE_GIB * GIB), 6),
        wanted=wanted if size.wanted_gib > cache.mm_processor_cache_gb else None,
        curve=tuple((capacity, round(rate, 6)) for capacity, rate in curve.points(_POINTS)),
    )


def evidence(
    decision: Decision,
    opened: ModelInfo,
    policy: Policy,
    gpu: Gpu | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Evidence]:
    """Yield one entry per emitted value, in the configuration's order; `given` are the user's."""
    for modality in decision.counts:
        yield from _limit(decision, modality)
    yield from _caps(decision, policy)
    for media, options in policy.media_io_kwargs.items():
        for name, value in options.items():
            yield _user_evidence(f"media_io_kwargs.{media}.{name}", value, "--media-io-kwargs")
    remedied: dict[str, Evidence | None] = {
        name: Evidence(setting=name, value=value, label="rehearsed", reason=remedy.price)
        for remedy in decision.remedies
        for name, value in remedy.changes.items()
    }
    yield remedied.pop("max_model_len", None) or _context(decision, policy)
    yield remedied.pop("max_num_batched_tokens", None) or _batched(decision, opened, policy, gpu)
    yield from filter(None, remedied.values())
    given = {**{n: getattr(policy, n) for n in ("max_num_seqs", "gpu_memory_utilization")}, **given}
    for name, value in given.items():
        if value is not None:
            yield _user_evidence(name, value, flag(name))
    yield from cache_evidence(decision)


def _user_evidence(setting: str, value: Any, option: str) -> Evidence:
    return Evidence(setting=setting, value=value, label="given", reason=f"given: {option}")


def add_effects(entries: Iterable[Evidence], effects: Sequence[Effect]) -> Iterator[Evidence]:
    """Yield the emitted settings, each with the change that switching it off makes."""
    for entry in entries:
        effect = next((e for e in effects if e.concerns(entry.setting)), None)
        if effect is None:
            yield entry
        elif effect.outcome != "idle":
            yield entry.model_copy(update={"effect": effect.words})


def _limit(decision: Decision, modality: Modality) -> Iterator[Evidence]:
    count = decision.counts[modality]
    name = f"limit_mm_per_prompt.{modality}"
    setting = f"{name}.count" if decision.hints.get(modality) else name
    yield Evidence.from_value(count, setting=setting)
    heaviest = decision.table.heaviest(modality)
    if heaviest is None:
        return
    for axis, value in decision.hints.get(modality, {}).items():
        yield Evidence(
            setting=f"{name}.{axis}",
            value=value,
            label="measured",
            reason=f"the costliest {modality}, {heaviest.shape}: {heaviest.embeds} tokens, "
            "the same as vLLM's dummy",
            exemplar=heaviest.exemplar,
        )


def _caps(decision: Decision, policy: Policy) -> Iterator[Evidence]:
    capped = policy.max_tokens_per_item is not None
    for point in decision.chosen:
        knob = point.knob
        if point.value == knob.value:
            continue
        largest = decision.table.heaviest(knob.modality)
        yield Evidence(
            setting=".".join(knob.key_path()),
            value=point.value,
            label="given" if capped and not knob.is_loader_option else "measured",
            reason=f"{_choice_reason(point, decision, policy)}; {knob.describe_value(point.value)}",
            exemplar=largest.exemplar if largest else "",
        )
        for name, value in knob.companions(point.value).items():
            yield Evidence(
                setting=".".join(knob.key_path(name)),
                value=value,
                label="computed",
                reason=f"processor default; required with {knob.path[-1]}",
            )


def _choice_reason(point: Point, decision: Decision, policy: Policy) -> str:
    downscaled = point.items_downscaled
    if point.knob.is_loader_option:
        return f"smallest with {policy.min_video_frames} frames of every video"
    if decision.forced and downscaled:
        return f"forced, {plural(downscaled, 'item')} downscaled: otherwise {decision.forced}"
    if policy.max_tokens_per_item is not None:
        smaller = plural(downscaled, "item")
        return f"--max-tokens-per-item {policy.max_tokens_per_item}: {smaller} downscaled"
    if policy.prefer == "throughput":
        return f"smallest that downscales at most half: {downscaled} items"
    if point.is_beyond_default:
        left = f"{point.items_shrunk:,} still shrink" if point.items_shrunk else "none shrinks"
        words = f"detail of {plural(point.items_gaining, point.knob.modality)}"
        words += "" if point.items_shrunk is None else f", {left}"
        return f"{words}; otherwise {decision.forced}" if decision.forced else words
    return "smallest that downscales nothing"


def _context(decision: Decision, policy: Policy) -> Evidence:
    label: Label = "computed"
    reason, exemplar = "the model's own context", ""
    if policy.context_tokens is not None:
        reason, label = "given: --max-model-len", "given"
    elif policy.max_model_len == FIT and decision.longest is not None:
        longest = decision.longest
        exemplar = longest.longest.origin
        reason = f"the smallest that holds the longest prompt: {longest.description}"
        if longest.unknown:
            reason = f"the model's own context: {longest.problems}"
    value = decision.engine_args["max_model_len"]
    return Evidence(
        setting="max_model_len", value=value, label=label, reason=reason, exemplar=exemplar
    )


def _batched(decision: Decision, opened: ModelInfo, policy: Policy, gpu: Gpu | None) -> Evidence:
    value = decision.engine_args["max_num_batched_tokens"]
    most = max(decision.budget.max_tokens_per_item.values(), default=0)
    largest = decision.table.largest()
    base = opened.serve_defaults["max_num_batched_tokens"]
    label: Label = "computed" if gpu else "assumed"
    where, exemplar, wanted = f"on {gpu.name}" if gpu else "on this machine", "", base
    if largest is not None and largest.embeds > max(most, base):
        label, exemplar, wanted = "computed", largest.exemplar, largest.embeds
    if policy.max_num_batched_tokens is not None:
        label, reason = "given", "given: --max-num-batched-tokens"
    elif value == base:
        reason = f"vllm serve's default {where}"
        reason += "" if gpu else f" ({opened.device}); other machines differ"
    else:
        reason = f"vLLM's default {where}, {base}"
        if wanted != base:
            reason = f"the encoder cache must hold the largest item, {wanted} tokens"
        way = "down" if value < wanted else "up"
        reason += f", rounded {way} to whole items of {most} tokens" if value != wanted else ""
        reason += ", which leaves more KV cache than rounded up" if gpu and way == "down" else ""
    return Evidence(
        setting="max_num_batched_tokens", value=value, label=label, reason=reason, exemplar=exemplar
    )
