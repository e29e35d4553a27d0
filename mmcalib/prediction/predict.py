"""Rehearse a decision, its explored points, and a fixed KV cache."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from mmcalib.checks import memory
from mmcalib.checks.check import Check
from mmcalib.checks.facts import Decision, Explored, JudgedConfig
from mmcalib.decision.decide import MemoryJudge
from mmcalib.domain.memory import RehearsedMemory, floor_utilization
from mmcalib.errors import MmcalibError, VerdictError
from mmcalib.limits.demand import FixedKvCache, Shortfall, fix_kv_cache_size
from mmcalib.limits.policy import Cost
from mmcalib.prediction.rehearse import EngineArgs, MemoryPrediction, Predicted, Steps
from mmcalib.prediction.worst_steps import (
    RehearseAll,
    encoder_steps,
    find_remedies,
    find_shortfall,
    rehearse_worst_steps,
    worst_step_configs,
)
from mmcalib.releases.constants import SMALL_GPU_BATCHED_TOKENS, VLLM_SLACK_BYTES
from mmcalib.remedies.memory import SEQUENCES, UTILIZATION, Remedy, read_problem, set_value
from mmcalib.results.calibration import Evidence
from mmcalib.results.memory import TrafficFigures
from mmcalib.text import flag, gib, plural, remaining

# vLLM names what a request needs only if some KV cache is left.
_LITTLE: Final = 64 << 20
# The most that first predictions for 15 starts were too high, as a share of the GPU (reports/gpu).
_ERROR: Final = 0.0072
_TRIES: Final = 4
# Arguments that set how much memory the KV cache gets.
_KV_SIZES: Final = frozenset({UTILIZATION, "kv_cache_memory_bytes", "num_gpu_blocks_override"})


def reject_too_small(
    prediction: MemoryPrediction, default: EngineArgs, least: EngineArgs, model: str
) -> None:
    """Raise VerdictError if no limits let vLLM start; call it in `prediction`'s thread.

    `least` has the `default` configuration's smallest context. Unless it sets a
    `gpu_memory_utilization`, mmcalib may raise it.
    """
    rehearsed = prediction.find_result(default)
    if isinstance(rehearsed, RehearsedMemory) and rehearsed.starts:
        return
    args = {**prediction.base, **least, "skip_mm_profiling": True}
    try:
        best = prediction.rehearsals.rehearse(args)
        if best.kv_cache_tokens is None and not best.refusal:
            # Remedies may set these; a start needs a block of recurrent state for each sequence.
            sequences = 1 if read_problem(best).most_sequences else SEQUENCES[0]
            few = {"max_num_seqs": sequences, "max_num_batched_tokens": SMALL_GPU_BATCHED_TOKENS}
            best = prediction.rehearsals.rehearse(args := {**args, **few, **least})
        if best.kv_cache_tokens is None and UTILIZATION not in least and not best.refusal:
            args[UTILIZATION] = best.proposed_utilization
            best = prediction.rehearsals.rehearse(args)
        modalities = best.budget.max_items_per_prompt if best.budget else {}
        # vLLM does not load the encoder of a modality that is off.
        for served in modalities if len(modalities) > 1 and not best.refusal else ():
            if best.kv_cache_tokens is not None:
                return
            limits = {modality: int(modality == served) for modality in modalities}
            one = prediction.rehearsals.rehearse({**args, "limit_mm_per_prompt": limits})
            best = max(best, one, key=lambda answer: answer.kv_cache_bytes)
    except MmcalibError:
        return
    if best.refusal:
        hint = f"-- --gpu-memory-utilization {best.most_utilization:g}, or free memory on the GPU"
        raise VerdictError(
            f"vLLM would not start on {prediction.gpu.name}: {best.refusal}", hint=hint
        )
    said = read_problem(best)
    if best.kv_cache_tokens is not None or best.budget is None or said.most_sequences:
        return
    gpu, needed, longest = prediction.gpu, said.needed_bytes, said.longest_context
    weights, rest = gib(best.weights_bytes), "no room for a KV cache"
    if best.kv_cache_bytes > 0:
        request = f"one request of {best.budget.max_model_len:,} tokens"
        rest = f"{gib(best.kv_cache_bytes)} for the KV cache before any media; {request} needs "
        rest += gib(needed) if needed else "more"
    card = best.card_bytes((needed or 0) - best.kv_cache_bytes)
    ranks = best.tensor_parallel_size << max(1, math.ceil(math.log2(card / best.total_bytes)))
    what = f"{model} does not fit on {gpu.name}: its weights, {weights}, leave {rest}"
    hint = f"--max-model-len {longest} or less, " if longest else ""
    larger = f"a GPU with about {gib(card)}"
    if card <= best.total_bytes:
        larger = f"-- {flag(UTILIZATION)} {best.proposed_utilization:g}"
    hint += f"{larger}, -- {flag('tensor_parallel_size')} {ranks}, or a fix "
    raise VerdictError(what, hint=f"{hint}from mmcalib plan --model {model} {gpu.flags}")


@dataclass(frozen=True, slots=True)
class RehearsalJudge(MemoryJudge):
    """Judges decisions by rehearsals on one GPU. The KV cache must hold `concurrency` sequences.
    `serve` serves the corpus' requests, and returns None if vLLM would not start. `given` are the
    engine arguments that the user has set; without `reserves` the reserve decides nothing.
    """

    prediction: MemoryPrediction
    default: EngineArgs
    concurrency: float | None
    serve: Callable[[EngineArgs], TrafficFigures | None]
    given: Collection[str] = ()
    reserves: bool = True

    def rejects(self, decision: Decision, *, reserved: bool = False) -> str:
        """Say why it cannot start, holds too few sequences, or runs out of memory under load; empty
        if it serves or that is unknown.
        """
        gpu = self.prediction.gpu.name
        rehearsed = self._attempt(decision)
        if rehearsed is None:
            return ""
        if rehearsed.max_concurrency is None:
            left = f"KV cache {remaining(rehearsed.kv_cache_bytes)}"
            if read_problem(rehearsed).most_sequences:
                left = rehearsed.start_problem
            return f"vLLM would not start on {gpu}: {left}"
        most, wanted = rehearsed.max_concurrency, self.concurrency
        if wanted is not None and most < wanted:
            return f"only {most:.1f} of {wanted:g} sequences would fit on {gpu}"
        short = self._shortfall(decision)
        if short is not None and not (short.passes if reserved else short.holds):
            return f"the largest step would take {gib(short.nbytes)} more than {gpu} has reserved"
        return ""

    def kv_tokens(self, decision: Decision | None) -> int | None:
        rehearsed = self._attempt(decision)
        return None if rehearsed is None else rehearsed.kv_cache_tokens or 0

    def serves_worse(self, decision: Decision) -> bool:
        before, after = map(self._attempt, (None, decision))
        if (served := self._serve(decision.engine_args)) is None:
            return False
        larger = memory.steps_are_larger(before, after)
        return memory.serves_worse(self._serve(self.default), served, larger_steps=larger)

    def slows(self, decision: Decision) -> bool:
        usual, served = self._serve(self.default), self._serve(decision.engine_args)
        return usual is not None and served is not None and memory.is_slower(usual, served)

    def spends_reserve(self, decision: Decision) -> bool:
        usual, served = self._serve(self.default), self._serve(decision.engine_args)
        return usual is not None and served is not None and memory.spends_reserve(served, usual)

    def keep_reserve(self, decision: Decision) -> Remedy | None:
        usual, served = self._serve(self.default), self._serve(decision.engine_args)
        rehearsed = self._attempt(decision)
        if usual is None or served is None or rehearsed is None:
            return None
        fixed = rehearsed.division.is_extensible or not _KV_SIZES.isdisjoint(self.given)
        if fixed or not self.reserves:
            return None
        left = memory.reserve_left(served, usual)
        room = rehearsed.requested_bytes - (VLLM_SLACK_BYTES - left)
        share = floor_utilization(room, rehearsed.total_bytes, 1000)
        why = f"keeps {VLLM_SLACK_BYTES >> 20} MiB free under load; otherwise {remaining(left)}"
        return set_value(UTILIZATION, share, why, "KV cache")

    def remedies(self, decision: Decision) -> Iterator[Remedy]:
        rehearsed = self._attempt(decision)
        if rehearsed is None:
            return
        short = self._shortfall(decision) if rehearsed.max_concurrency is not None else None
        found = self._start(decision, rehearsed)
        if short is not None and not short.holds:
            found = self._leave_room(short, decision)
        for one in found:
            if not any(name in self.given for name in one.changes):
                yield one

    def _start(self, decision: Decision, rehearsed: RehearsedMemory) -> Iterator[Remedy]:
        """Yield what may let vLLM start, or hold more sequences: first what costs nothing."""
        gpu, budget = self.prediction.gpu.name, decision.budget
        if fewer := read_problem(rehearsed).most_sequences:
            why = "vLLM would not start with more: recurrent layers need a block per sequence"
            yield set_value("max_num_seqs", fewer, why)
            return
        # The most, if no share is enough by itself.
        most, usual = rehearsed.proposed_utilization, rehearsed.division.utilization
        share = 0 if UTILIZATION in self.given else self._fitting_utilization(decision) or most
        if share > decision.engine_args.get(UTILIZATION, usual):
            why = f"vLLM would not start on {gpu} with less; nothing else may use that memory"
            yield set_value(UTILIZATION, share, why)
        largest = max(decision.table.largest_embeds, *budget.max_tokens_per_item.values(), 0)
        batch = max(SMALL_GPU_BATCHED_TOKENS, largest)
        if batch < budget.max_num_batched_tokens:
            why = f"a larger step leaves too little KV cache on {gpu}: slower first answers"
            yield set_value("max_num_batched_tokens", batch, why)
        if max(SEQUENCES[0], self.concurrency or 0) < budget.max_num_seqs:
            why = f"CUDA graphs and sampling of more leave too little KV cache on {gpu}"
            yield set_value("max_num_seqs", SEQUENCES[0], why)
        if longest := self._fitting_context(decision, rehearsed):
            why = f"the longest that fits on {gpu}; the model's own is {budget.max_model_len:,}"
            yield set_value("max_model_len", longest, why)

    def would_serve(self, decision: Decision) -> str:
        """Name the utilization, the context or the memory of a GPU with which it would serve."""
        rehearsed = self.prediction.attempt(decision.engine_args)
        # What starts lacks memory for a step, which none of these gives.
        if rehearsed is None or not (lacking := self._lacking_bytes(rehearsed)):
            return ""
        if share := self._fitting_utilization(decision):
            return f"-- {flag(UTILIZATION)} {share:g} keeps all detail, rehearsed"
        if longest := self._fitting_context(decision, rehearsed):
            return f"--max-model-len {longest} keeps all detail, rehearsed"
        whole = gib(rehearsed.card_bytes(lacking))
        return f"a GPU with about {whole} keeps all detail (computed), or mmcalib plan"

    def _fitting_utilization(self, decision: Decision) -> float | None:
        """Return the least share of the GPU with which vLLM starts; None if more than is free."""
        args = dict(decision.engine_args)
        for _ in range(_TRIES):
            answer = self.prediction.attempt(args)
            if answer is None or read_problem(answer).most_sequences:
                return None
            if not (lacking := self._lacking_bytes(answer)):
                return args.get(UTILIZATION)
            share = (answer.requested_bytes + lacking) / answer.total_bytes + _ERROR
            share = math.ceil(100 * share) / 100
            if share > answer.proposed_utilization:
                return None
            args[UTILIZATION] = share
        return None

    def _fitting_context(self, decision: Decision, rehearsed: RehearsedMemory) -> int | None:
        """Return the longest context with which vLLM starts, if the corpus' prompts fit in it."""
        longest, needed = read_problem(rehearsed).longest_context, decision.longest
        if longest is None or (needed is not None and needed.needed_tokens > longest):
            return None
        answer = self.prediction.attempt({**decision.engine_args, "max_model_len": longest})
        return longest if answer is not None and answer.max_concurrency is not None else None

    def _lacking_bytes(self, answer: RehearsedMemory) -> int:
        """Return the KV cache that one request, or the concurrency, lacks; 0 if nothing."""
        if answer.max_concurrency is None:
            return (read_problem(answer).needed_bytes or _LITTLE) - answer.kv_cache_bytes
        wanted = (self.concurrency or 0) / answer.max_concurrency
        return max(0, round(answer.kv_cache_bytes * (wanted - 1)))

    def _leave_room(self, short: Shortfall, decision: Decision) -> Iterator[Remedy]:
        """Yield what leaves memory for the largest step: first what costs KV cache, then speed."""
        why = f"leaves memory for the largest step, which lacks {gib(short.nbytes)} without it"
        for remedy, _ in find_remedies(short, decision, self.prediction.rehearse_all):
            # The reserve is KV cache even if other settings give it back.
            cost: Cost = "speed" if remedy.cost == "speed" else "KV cache"
            yield replace(remedy, cost=cost, price=why)

    def _attempt(self, decision: Decision | None) -> RehearsedMemory | None:
        """Rehearse the decision with the steps that judge it later; None for the default."""
        if decision is None:
            return self.prediction.attempt(self.default)
        steps = encoder_steps(decision) if self.reserves else ()
        return self.prediction.attempt(decision.engine_args, steps)

    def _shortfall(self, decision: Decision) -> Shortfall | None:
        """Return the shortfall of the costliest step; None if unknown or of no interest."""
        if not self.reserves:
            return None
        after = self._attempt(decision)
        steps = rehearse_worst_steps(decision, self.prediction.rehearse_all)
        return find_shortfall(decision, after, steps)

    def _serve(self, args: EngineArgs) -> TrafficFigures | None:
        self.prediction.attempt(args)
        with self.prediction.progress.step(f"simulating requests on {self.prediction.gpu.name}"):
            try:
                return self.serve(args)
            except MmcalibError:
                return None


def find_default_problem(
    predicted: Predicted, default: EngineArgs, decision: Decision, ask: RehearseAll
) -> str:
    """Say why vLLM's defaults do not serve the corpus; empty if they do or that is unknown. Asks
    for their worst steps only if they hold more KV cache than the decision.
    """
    before, after, table = predicted.default, predicted.calibrated, decision.default_table
    if before is None or after is None or before.kv_cache_tokens is None:
        return ""
    limit, admitted = (b.encoder_budget_tokens for b in (decision.default_budget, decision.budget))
    columns = [table.columns_of(modality) for modality in table.modalities()]
    over = sum(int(c.counts[(c.embeds > limit) & (c.embeds <= admitted)].sum()) for c in columns)
    if over:
        return f"reject {over:,} of {plural(sum(c.item_count() for c in columns), 'item')}"
    if before.kv_cache_tokens <= (after.kv_cache_tokens or 0):
        return ""
    budget = decision.default_budget
    # Without options the decision has the default's dummies, which the default's budget lacks.
    plain = decision.plain if decision.setting == table.setting else budget
    judged = JudgedConfig(dict(default), decision.counts, budget, plain, decision.adequacy, table)
    steps, (loaded,) = rehearse_worst_steps(judged, ask), ask([default], encoder_steps(judged))
    short = find_shortfall(judged, loaded, steps)
    if short is None or short.holds:
        return ""
    return f"run out of memory under load: {gib(short.nbytes - short.outside_bytes)} are missing"


def start_rehearsals(prediction: MemoryPrediction, default: EngineArgs, decision: Decision) -> None:
    """Start all rehearsals of `rehearse_decision`; returns at once."""
    for args, steps in _wanted_configs(default, decision):
        if args is not None:
            prediction.start(args, steps)
    for _, worst in worst_step_configs(decision):
        prediction.start(worst)


def rehearse_decision(
    prediction: MemoryPrediction, default: EngineArgs, decision: Decision
) -> Predicted:
    """Rehearse the default, the calibrated config, each modality's worst step and some points."""
    worst = rehearse_worst_steps(decision, prediction.rehearse_all)
    before, after, *points = prediction.rehearse_each(_wanted_configs(default, decision))
    return Predicted(prediction.gpu, before, after, tuple(points), worst, prediction.failure)


# Values of one option to rehearse: enough for a curve.
_POINTS: Final = 6


def _wanted_configs(
    default: EngineArgs, decision: Decision
) -> list[tuple[EngineArgs | None, Steps]]:
    """Return the configurations: default, calibrated, points (None for one not rehearsed)."""
    points: list[EngineArgs | None] = []
    by_profile: dict[tuple[Any, ...], EngineArgs] = {}
    for _, group in groupby(decision.explored, key=lambda e: e.point.knob.name):
        row = list(group)
        every = -(-len(row) // _POINTS)
        for place, one in enumerate(row):
            kept = place % every == 0 or one.engine_args == decision.engine_args
            args = by_profile.setdefault(_profile(one), one.engine_args) if kept else None
            points.append(args)
    own = decision.engine_args, encoder_steps(decision)
    return [(default, ()), own, *((args, ()) for args in points)]


def _profile(one: Explored) -> tuple[Any, ...]:
    """Return the values that determine a point's memory, the context last."""
    budget = one.budget
    modality = budget.profiled_modality
    limits = one.engine_args.get("limit_mm_per_prompt", {})
    # Size hints set the items that vLLM profiles.
    hinted = {m: limit for m, limit in limits.items() if isinstance(limit, Mapping)}
    return (
        modality,
        budget.profiled_items,
        budget.max_tokens_per_item.get(modality) if modality else None,
        budget.encoder_cache_size,
        budget.max_num_batched_tokens,
        budget.max_num_seqs,
        json.dumps(hinted, sort_keys=True),
        budget.max_model_len,
    )


@dataclass(frozen=True, slots=True)
class PinnedPool:
    """A fixed KV cache and its rehearsal; both are None if vLLM would not start with it."""

    pool: FixedKvCache | None
    check: Check
    rehearsed: RehearsedMemory | None = None


def fix_kv_cache(
    predicted: Predicted, decision: JudgedConfig, ask: RehearseAll
) -> PinnedPool | None:
    """Rehearse a fixed KV cache, smaller by the shortfall of serving; None if unknown."""
    short = find_shortfall(decision, predicted.calibrated, predicted.steps)
    spared = short.nbytes if short is not None and not short.passes else 0
    pool = fix_kv_cache_size(predicted.calibrated, spared) if predicted.calibrated else None
    if pool is None:
        return None
    (rehearsed,) = ask([{**decision.engine_args, **pool.values}], encoder_steps(decision))
    check = memory.fixed_kv_cache_check(pool, rehearsed)
    if check.status == "fail":
        return PinnedPool(None, check)
    return PinnedPool(pool, check, rehearsed)


def pool_evidence(pool: FixedKvCache, gpu: str) -> Iterator[Evidence]:
    """Yield one entry per emitted value."""
    steps = f" and {gib(pool.spared_bytes)} for steps above the profile"
    spared = steps if pool.spared_bytes else ""
    yield Evidence(
        setting="kv_cache_memory_bytes",
        value=pool.kv_cache_memory_bytes,
        label="rehearsed",
        reason=f"--pin-kv-cache: memory left on {gpu}, minus {VLLM_SLACK_BYTES >> 20} MiB as vLLM "
        f"suggests{spared}; {pool.effect}",
    )
    if pool.capture_sizes:
        yield Evidence(
            setting="cudagraph_capture_sizes",
            value=list(pool.capture_sizes),
            label="rehearsed",
            reason=f"--pin-kv-cache: vLLM's default on {gpu}, fixed so that no start captures more",
        )
