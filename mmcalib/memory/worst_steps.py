"""Rehearse what serving may take at once (R4), and remedies: worst steps of each modality, as
configurations whose startup profile is that step, and what lives beside the encoder's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

import numpy as np

from mmcalib.census.accesses import Accesses
from mmcalib.checks.catalogue import CACHE_RETENTION
from mmcalib.checks.check import Check
from mmcalib.checks.facts import JudgedConfig
from mmcalib.derive import demand
from mmcalib.domain.memory import Budget, EncoderStep, Rehearsed
from mmcalib.domain.shapes import Modality
from mmcalib.memory.rehearse import Predicted
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.text import gib, number

# Phases of the profile that a step of the language model is made of.
_LANGUAGE: Final = ("language model", "sampler")


def configurations(decision: JudgedConfig) -> Iterator[tuple[Modality, dict[str, Any]]]:
    """Per served modality: engine arguments under which vLLM profiles a step full of it.

    The budget stays what it is; size hints are gone, because they shrink the profiled item and not
    what may come, and so is a skipped profile. A step of several modalities encodes one after the
    other within the same budget and keeps only their results, so the costliest single one bounds
    it.
    """
    budget = decision.budget
    for modality, count in decision.counts.items():
        if not count.value or not budget.max_tokens_per_item.get(modality):
            continue
        only = {m: count.value if m == modality else 0 for m in decision.counts}
        args = {k: v for k, v in decision.engine_args.items() if k != "skip_mm_profiling"}
        tokens = budget.encoder_budget_tokens
        yield modality, {**args, "limit_mm_per_prompt": only, "max_num_batched_tokens": tokens}


def rehearse_worst_steps(decision: JudgedConfig, ask: Ask) -> dict[Modality, Rehearsed]:
    """The worst step of each served modality, without those that end early."""
    every = list(configurations(decision))
    found = ask([args for _, args in every], ())
    return {m: step for (m, _), step in zip(every, found, strict=True) if step is not None}


def padded(decision: JudgedConfig) -> dict[Modality, demand.Excess]:
    """Per modality the corpus' items that give the encoder more than as many tokens of dummies."""
    counts = decision.items_per_prompt
    found = demand.excesses(decision.table, decision.budget, decision.plain, counts)
    return {excess.modality: excess for excess in found}


def encoder_steps(decision: JudgedConfig) -> tuple[EncoderStep, ...]:
    """Steps of such items, as many as one admits; no profile of vLLM's is one."""
    return tuple(EncoderStep(e.cost.shape, e.items) for e in padded(decision).values())


def shortfall(
    decision: JudgedConfig, calibrated: Rehearsed, steps: Mapping[Modality, Rehearsed]
) -> demand.Shortfall:
    """The costliest demand against what is reserved; `calibrated` has peaks of `encoder_steps`."""
    return demand.Shortfall(
        reserved_bytes=calibrated.activation_peak_bytes + calibrated.spare_bytes,
        worst=max(demands(decision, calibrated, steps), key=lambda one: one.nbytes),
        outside_bytes=calibrated.total_bytes - calibrated.requested_bytes,
        spare_bytes=calibrated.spare_bytes,
    )


def demands(
    decision: JudgedConfig, calibrated: Rehearsed, steps: Mapping[Modality, Rehearsed]
) -> Iterator[demand.Demand]:
    """Every part that may decide, encoder steps first."""
    budget, width = decision.budget, output_width(calibrated, steps)

    def beside(tokens: int) -> demand.Resident:
        """The rest of a full cache, whose entries outlive their requests."""
        return demand.Resident(max(0, budget.encoder_cache_size - tokens), width)

    for modality, step in steps.items():
        # Scaled to a full step, which is no more than all sequences can ask for at once.
        most = decision.counts[modality].value * budget.largest_item(modality)
        limit = min(budget.encoder_budget_tokens, budget.max_num_seqs * most)
        yield demand.worst_step(
            modality,
            step.encoder_peak_bytes or 0,
            profiled_tokens=step.encoder_tokens,
            limit_tokens=limit,
            resident=beside(limit),
            kept_bytes=calibrated.kept_bytes,
        )
    excess = padded(decision)
    for found in calibrated.steps:
        of, tokens, peak = excess.get(found.step.shape.modality), found.tokens, found.peak_bytes
        if peak is not None and tokens is not None and of is not None:
            items, path = found.step.items, of.cost.exemplar
            yield demand.WorstStep(of.modality, tokens, peak, beside(tokens), items, path)
    # What the profile's own outputs hold is part of its later peaks.
    held = calibrated.outputs.held_bytes if calibrated.outputs else 0
    profiled = max((p.peak_bytes for p in calibrated.phases if p.name in _LANGUAGE), default=0)
    if profiled:
        yield demand.LanguageStep(budget.max_num_batched_tokens, profiled - held, beside(0))
    alone = min((one.phase.peak_bytes for one in calibrated.prefills), default=0)
    for one in calibrated.prefills:
        tokens, peak = budget.max_num_batched_tokens, one.phase.peak_bytes
        yield demand.PromptsStep(tokens, peak, beside(0), one.prompts, alone, profiled)
    if calibrated.merge_peak_bytes is not None:
        tokens = min(budget.max_num_batched_tokens, budget.encoder_cache_size)
        yield demand.Merge(tokens, calibrated.merge_peak_bytes, beside(0))


def output_width(calibrated: Rehearsed, steps: Mapping[Modality, Rehearsed]) -> int:
    """Bytes of one cached embedding; a profile that was skipped knows less than a worst step."""
    found = [one.outputs for one in (calibrated, *steps.values()) if one.outputs is not None]
    return max((outputs.bytes_per_token for outputs in found), default=0)


# Rehearses configurations, the first with steps of the encoder; None where one ends early.
Ask = Callable[[Sequence[Mapping[str, Any]], tuple[EncoderStep, ...]], Sequence[Rehearsed | None]]

# Arithmetic takes what does not follow from the setting for fixed: the second try knows better.
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Remedy:
    """Settings under which it passes, and what it then reserves and takes."""

    engine: demand.Engine
    found: demand.Shortfall
    rehearsed: Rehearsed


def find_remedies(found: demand.Shortfall, decision: JudgedConfig, ask: Ask) -> Iterator[Remedy]:
    """Less at once, then more reserved, as far as either passes, with what views keep on top."""
    counts = decision.items_per_prompt
    for cure in (demand.smaller, demand.larger):
        at, short, engine = decision.budget, found, demand.Engine()
        for _ in range(_TRIES):
            step = cure(short, at, counts)
            if step is None:
                break
            engine = demand.Engine(**{**engine.values, **step.values})
            answer = _under(engine, decision, ask)
            if answer is None:
                break
            at, found_now, rehearsed = answer
            short = _beside_last_batch(found_now, at, counts, rehearsed)
            if short.passes:
                yield Remedy(engine, found_now, rehearsed)
                break


def with_less_kv_cache(
    found: demand.Shortfall, before: Rehearsed, decision: JudgedConfig, ask: Ask
) -> Remedy | None:
    """A KV cache that leaves room for what is short, with as many sequences as leave half of the
    cache where all of them leave less; None where too little of it is left then.
    """
    step, seqs = found.worst, None
    if isinstance(step, demand.WorstStep) and step.items:
        # It is the number of items that takes more than is reserved.
        room = found.reserved_bytes + before.kv_cache_bytes // 2 - step.resident.nbytes
        count = decision.counts[step.modality].value or 1
        half = max(1, int(room * step.items / step.peak_bytes) // count)
        if half < decision.budget.max_num_seqs and half * count < step.items:
            seqs = half
    if seqs is not None:
        fewer = _under(demand.Engine(max_num_seqs=seqs), decision, ask)
        if fewer is None:
            return None
        _, found, before = fewer
    pool = demand.fixed_pool(before, max(0, found.nbytes))
    if pool is None:
        return None
    engine = demand.Engine(seqs, kv_cache_memory_bytes=pool.kv_cache_memory_bytes)
    answer = _under(engine, decision, ask)
    if answer is None or not answer[1].passes:
        return None
    return Remedy(engine, *answer[1:])


def _beside_last_batch(
    found: demand.Shortfall, budget: Budget, counts: Mapping[Modality, int], rehearsed: Rehearsed
) -> demand.Shortfall:
    """The same, beside the language model, with the batch that leaves the encoder cache item by
    item: while one stays, so does a shared storage. `what cached items keep` tells the rest.
    """
    outputs, resident = rehearsed.outputs, found.worst.resident
    # To encode a step makes room for it.
    encodes = isinstance(found.worst, demand.WorstStep)
    if encodes or outputs is None or not outputs.shared or not outputs.outlive:
        return found
    largest = max(budget.max_tokens_per_item.values(), default=0)
    at_once = budget.max_num_seqs * sum(counts.values()) * largest
    gone = max(0, min(budget.encoder_budget_tokens, at_once) - largest)
    more = replace(resident, tokens=resident.tokens + gone)
    return replace(found, worst=replace(found.worst, resident=more))


def _under(
    engine: demand.Engine, decision: JudgedConfig, ask: Ask
) -> tuple[Budget, demand.Shortfall, Rehearsed] | None:
    """What serving would take under these values; None where it would not start."""
    args, expected = engine.on(decision.engine_args), _expected(decision.budget, engine)
    altered = replace(decision, engine_args=args, budget=expected)
    every = list(configurations(altered))
    first, *others = ask(
        [altered.engine_args, *(args for _, args in every)], encoder_steps(altered)
    )
    if first is None or first.kv_cache_tokens is None or first.budget is None:
        return None
    steps = {m: one for (m, _), one in zip(every, others, strict=True) if one is not None}
    if len(steps) < len(every):
        return None
    # A rehearsal does not look for the largest clip.
    budget = replace(first.budget, largest_clip=decision.budget.largest_clip)
    return budget, shortfall(replace(altered, budget=budget), first, steps), first


def _expected(budget: Budget, engine: demand.Engine) -> Budget:
    """The budget as `compute_mm_encoder_budget` of vLLM has it: tells what to rehearse."""
    batch = engine.max_num_batched_tokens or budget.max_num_batched_tokens
    tokens = max(batch, max(budget.max_tokens_per_item.values(), default=0))
    if engine.max_num_batched_tokens is None:
        tokens = budget.encoder_cache_size
    return replace(
        budget,
        max_num_seqs=engine.max_num_seqs or budget.max_num_seqs,
        max_num_batched_tokens=batch,
        encoder_compute_budget=tokens,
        encoder_cache_size=tokens,
    )


def views_check(predicted: Predicted, decision: JudgedConfig, accesses: Accesses) -> Check | None:
    """Whether shared batches are reserved for; None if nothing is shared, kept or rehearsed."""
    after = predicted.calibrated
    outputs = after.outputs if after else None
    if after is None or outputs is None or outputs.shared is False or not outputs.outlive:
        return None
    found = _retained(decision, accesses)
    every = demands(decision, after, predicted.steps)
    steps = (one for one in every if isinstance(one, demand.LanguageStep | demand.PromptsStep))
    language = max(steps, key=lambda one: one.nbytes, default=None)
    width = output_width(after, predicted.steps)
    if found is None or language is None or not width:
        return None
    counted, kept = found.cache_tokens * width, found.tokens * width
    said = "every item" if not found.known else "each item that requests name again"
    detail = (
        "an item in the encoder cache keeps the memory of the whole batch that it came with: at "
        f"most {gib(kept)} for this corpus where the cache counts {gib(counted)}, computed for "
        f"{number(found.batches)} batches, {said} staying while others come and go"
    )
    if not found.known:
        detail += " (assumed: no order of requests is given)"
    short = language.peak_bytes + kept - after.activation_peak_bytes
    if short <= VLLM_SLACK_BYTES:
        return Check(CACHE_RETENTION, "pass", f"{detail}; the profile reserves that much")
    return Check(
        CACHE_RETENTION,
        "warn",
        f"{detail}; with the language model's step that is {gib(short)} more than is reserved",
        "a lower gpu_memory_utilization leaves room without reserving it; a smaller "
        "max_num_batched_tokens makes batch and cache smaller",
    )


def _retained(decision: JudgedConfig, accesses: Accesses) -> demand.Pinned | None:
    """The bound for the corpus' own items; None without any."""
    budget, table = decision.budget, decision.table
    cache, known = budget.encoder_cache_size, bool(accesses.ends) and accesses.complete
    batch = 0
    for modality in table.modalities():
        heaviest = table.heaviest(modality)
        if heaviest is not None and decision.counts[modality].value:
            at_once = budget.max_num_seqs * decision.counts[modality].value
            batch = max(batch, min(budget.encoder_budget_tokens, at_once * heaviest.embeds))
    if not cache or not batch:
        return None
    kept: list[int] = []
    if known:
        shapes = (accesses.items[index][0] for index in demand.repeated(accesses.requests()))
        found = (table.costs.get(shape) for shape in shapes)
        kept = [cost.embeds for cost in found if cost is not None and cost.embeds]
    else:
        for costs in map(table.of, table.modalities()):
            embeds, rows = np.unique(costs.embeds[costs.embeds > 0], return_inverse=True)
            counts = np.bincount(rows, costs.counts[costs.embeds > 0])
            for size, count in zip(embeds.tolist(), counts.tolist(), strict=True):
                # No more of a size than the cache holds.
                kept += repeat(size, min(int(count), cache // size + 1))
    return demand.pinned(kept, cache, batch, known=known)
