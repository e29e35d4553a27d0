"""Rehearse the most memory that serving may take, and find remedies if the reserve is too small.

A modality's worst step is rehearsed as a configuration whose startup profile is that step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, Final

import numpy as np

from mmcalib.census.accesses import Accesses
from mmcalib.checks.check import Check
from mmcalib.checks.facts import JudgedConfig
from mmcalib.checks.memory import retention_check
from mmcalib.domain.memory import Budget, EncoderStep, PhasePeak, RehearsedMemory
from mmcalib.domain.shapes import Modality, scaled
from mmcalib.limits import demand
from mmcalib.limits.policy import Cost
from mmcalib.prediction.rehearse import Predicted
from mmcalib.remedies.memory import UTILIZATION, Remedy
from mmcalib.text import gib

# Phases of the profile that make up a step of the language model.
_LANGUAGE: Final = ("language model", "sampler")


def worst_step_configs(decision: JudgedConfig) -> Iterator[tuple[Modality, dict[str, Any]]]:
    """Yield, per served modality, engine arguments with which vLLM profiles a step full of it.

    The budget stays. Size hints go, because they shrink only the profiled item; where the model's
    largest item exceeds the budget, they grow to fill it. A skipped profile is run, at any share of
    the GPU. A step of several modalities encodes them one after the other within the same budget
    and keeps only their outputs, so the costliest modality bounds it.
    """
    budget, own = decision.budget, decision.engine_args
    hints = own.get("limit_mm_per_prompt") or {}
    tokens, largest = budget.encoder_budget_tokens, decision.plain.max_tokens_per_item
    for modality, count in decision.counts.items():
        if not count.value or not budget.max_tokens_per_item.get(modality):
            continue
        limit: int | dict[str, int] = count.value
        if isinstance(hint := hints.get(modality), Mapping) and tokens < largest.get(modality, 0):
            limit = _grow(hint, tokens / budget.max_tokens_per_item[modality])
        only = {m: limit if m == modality else 0 for m in decision.counts}
        args = {n: v for n, v in own.items() if n not in (UTILIZATION, "skip_mm_profiling")}
        yield modality, {**args, "limit_mm_per_prompt": only, "max_num_batched_tokens": tokens}


def _grow(hint: Mapping[str, int], share: float) -> dict[str, int]:
    """Return the hint of an item of `share` times the tokens: a larger area, or more length."""
    factors = {"width": math.sqrt(share), "height": math.sqrt(share), "length": share}
    if not factors.keys() & hint:
        factors = {"num_frames": share}
    return {name: math.floor(value * factors.get(name, 1)) for name, value in hint.items()}


def rehearse_worst_steps(
    decision: JudgedConfig, ask: RehearseAll
) -> dict[Modality, RehearsedMemory]:
    """Rehearse the worst step of each served modality; failed rehearsals are omitted.

    Some models need the encoder of a modality that is off (vLLM 0.32's MiniCPM-V 4.6 sends frames
    through that of images), and some profile a short item (Gemma 4's dummy sound has 1 of 750
    tokens): then the step runs after the configuration's own profile.
    """
    every = list(worst_step_configs(decision))
    answers = ask([args for _, args in every], ())
    steps = {m: step for (m, _), step in zip(every, answers, strict=True) if step is not None}
    own = tuple(_largest_step(m, decision) for m, _ in every if _is_short(m, steps, decision))
    if own and all(own):
        (after,) = ask([decision.engine_args], tuple(filter(None, own)))
        for ran in after.steps if after else ():
            if after is not None and ran.peak_bytes is not None:
                phase = PhasePeak("encoder", ran.peak_bytes, 0, "", ())
                steps[ran.step.shape.modality] = replace(
                    after, phases=(phase,), encoder_tokens=ran.tokens or 0
                )
    return steps


def _is_short(
    modality: Modality, steps: Mapping[Modality, RehearsedMemory], decision: JudgedConfig
) -> bool:
    """True without a step, or if its tokens are too few to tell what the largest item takes."""
    largest = decision.budget.max_tokens_per_item.get(modality, 0)
    full = min(largest, _step_tokens(modality, decision))
    return modality not in steps or steps[modality].encoder_tokens < full / 2


def _largest_step(modality: Modality, decision: JudgedConfig) -> EncoderStep | None:
    """Return a step full of vLLM's largest items of the modality; None if they are unknown."""
    dummy = decision.plain.dummies.get(modality)
    if dummy is None or not dummy.embeds or not dummy.size:
        return None
    largest = max(dummy.embeds, decision.budget.max_tokens_per_item.get(modality, 0))
    longer = largest / dummy.embeds
    shape = scaled(dummy.shape(modality), longer if modality == "audio" else math.sqrt(longer))
    return EncoderStep(shape, max(1, _step_tokens(modality, decision) // largest))


def _step_tokens(modality: Modality, decision: JudgedConfig) -> int:
    """Return the most tokens of the modality in a step: those of the items of all sequences."""
    budget = decision.budget
    most = decision.counts[modality].value * budget.largest_item(modality)
    return min(budget.encoder_budget_tokens, budget.max_num_seqs * most)


def find_excess_items(decision: JudgedConfig) -> dict[Modality, demand.Excess]:
    """Return corpus items that cost the encoder more than dummies of the same token count."""
    counts = decision.items_per_prompt
    every = demand.find_excesses(decision.table, decision.budget, decision.plain, counts)
    return {excess.modality: excess for excess in every}


def encoder_steps(decision: JudgedConfig) -> tuple[EncoderStep, ...]:
    """Return the largest steps of the `find_excess_items` items, which no profile includes."""
    return tuple(EncoderStep(e.cost.shape, e.items) for e in find_excess_items(decision).values())


def find_shortfall(
    decision: JudgedConfig,
    calibrated: RehearsedMemory | None,
    steps: Mapping[Modality, RehearsedMemory],
) -> demand.Shortfall | None:
    """Compare the costliest demand with the reserve; `calibrated` has peaks of `encoder_steps`.
    None if a part is unrehearsed or nothing needs memory.
    """
    served = [m for m, _ in worst_step_configs(decision)]
    if calibrated is None or any(m not in steps for m in served):
        return None
    # Embeddings from clients have no steps but need memory.
    needs_memory = decision.budget.encoder_cache_size or calibrated.prefills
    if not calibrated.phases or not needs_memory:
        return None
    return demand.Shortfall(
        reserved_bytes=calibrated.activation_peak_bytes + calibrated.spare_bytes,
        worst=max(list_demands(decision, calibrated, steps), key=lambda one: one.nbytes),
        outside_bytes=calibrated.outside_for_steps_bytes,
        spare_bytes=calibrated.spare_bytes,
        requested_bytes=calibrated.requested_bytes,
        total_bytes=calibrated.total_bytes,
        kv_cache_bytes=max(0, calibrated.kv_cache_bytes),
    )


def list_demands(
    decision: JudgedConfig, calibrated: RehearsedMemory, steps: Mapping[Modality, RehearsedMemory]
) -> Iterator[demand.Demand]:
    """Yield every demand that may be the costliest, encoder steps first."""
    budget, width = decision.budget, output_width(calibrated, steps)

    def rest_of_cache(tokens: int) -> demand.Resident:
        """Return a full cache minus `tokens`; its entries outlive their requests."""
        return demand.Resident(max(0, budget.encoder_cache_size - tokens), width)

    for modality, step in steps.items():
        # Scaled to a full step: smaller items take no more per token than the largest.
        limit, known = _step_tokens(modality, decision), step.encoder_tokens
        most = round((step.encoder_peak_bytes or 0) * max(1.0, limit / known if known else 1.0))
        rest, kept = rest_of_cache(limit), calibrated.kept_bytes
        yield demand.WorstStep(limit, most, rest, kept, modality=modality)
    excess = find_excess_items(decision)
    for ran in calibrated.steps:
        over, taken, peak_bytes = excess.get(ran.step.shape.modality), ran.tokens, ran.peak_bytes
        if peak_bytes is not None and taken is not None and over is not None:
            rest, path, items = rest_of_cache(taken), over.cost.exemplar, ran.step.items
            yield demand.WorstStep(taken, peak_bytes, rest, 0, items, path, modality=over.modality)
    # The profile's later peaks include its own outputs.
    outputs = calibrated.outputs.held_bytes if calibrated.outputs else 0
    profiled = max((p.peak_bytes for p in calibrated.phases if p.name in _LANGUAGE), default=0)
    full = rest_of_cache(0)
    if profiled:
        yield demand.LanguageStep(budget.max_num_batched_tokens, profiled - outputs, full)
    single = min((one.phase.peak_bytes for one in calibrated.prefills), default=0)
    for one in calibrated.prefills:
        tokens, peak = budget.max_num_batched_tokens, one.phase.peak_bytes
        own = {"prompts": one.prompts, "alone_bytes": single, "profiled_bytes": profiled}
        yield demand.PromptsStep(tokens, peak, full, **own)
    if calibrated.merge_peak_bytes is not None:
        tokens = min(budget.max_num_batched_tokens, budget.encoder_cache_size)
        yield demand.MergeStep(tokens, calibrated.merge_peak_bytes, full)


def output_width(calibrated: RehearsedMemory, steps: Mapping[Modality, RehearsedMemory]) -> int:
    """Bytes of one cached embedding; worst steps know it even if the profile is skipped."""
    every = [one.outputs for one in (calibrated, *steps.values()) if one.outputs is not None]
    return max((outputs.bytes_per_token for outputs in every), default=0)


# Rehearses configurations, the first with encoder steps; None for one that fails.
RehearseAll = Callable[
    [Sequence[Mapping[str, Any]], tuple[EncoderStep, ...]], Sequence[RehearsedMemory | None]
]

# The arithmetic assumes that all else stays the same; a rehearsal corrects it for the next try.
_TRIES: Final = 3
# The first two cost KV cache, the others sequences at once or speed.
_REMEDIES: Final = (
    *(demand.raise_reserve, demand.leave_room),
    *(demand.use_free, demand.allow_few, demand.shrink_step),
)


def find_remedies(
    first: demand.Shortfall, decision: JudgedConfig, ask: RehearseAll
) -> Iterator[tuple[Remedy, RehearsedMemory]]:
    """Yield the remedies that hold, retained storage included, at most one of each kind."""
    counts, found = decision.items_per_prompt, list[demand.Values]()
    for propose in _REMEDIES:
        budget, short, values = decision.budget, first, demand.Values()
        for _ in range(_TRIES):
            step = propose(short, budget, counts)
            values |= step
            if not step or values in found:
                break
            answer = _rehearse_with(values, decision, ask)
            if answer is None:
                break
            budget, short, rehearsed = answer
            short = _with_last_batch(short, budget, counts, rehearsed)
            outside = short.holds and (UTILIZATION in values or propose is demand.use_free)
            if short.passes or outside:
                found.append(values)
                yield _price(values, first, decision.budget, rehearsed), rehearsed
                break


def _price(
    values: demand.Values, first: demand.Shortfall, before: Budget, after: RehearsedMemory
) -> Remedy:
    """Make the remedy. Sequences above what the KV cache holds at full length cost no speed."""
    less_kv_cache = first.kv_cache_bytes - after.kv_cache_bytes
    seqs, batch = values.get("max_num_seqs"), values.get("max_num_batched_tokens")
    held = max(demand.FEW, after.max_concurrency or before.max_num_seqs)
    slower = seqs is not None and seqs < min(before.max_num_seqs, held)
    slower |= (batch or before.max_num_batched_tokens) < before.max_num_batched_tokens
    prices = [] if seqs is None else [f"vLLM reserves for up to {seqs} requests at once"]
    prices += [] if batch is None else [f"vLLM reads prompts {batch:,} tokens at a time"]
    prices += [f"{gib(less_kv_cache)} less for the KV cache"] if less_kv_cache > 0 else []
    is_free = less_kv_cache <= 0 and (seqs or before.max_num_seqs) >= before.max_num_seqs
    cost: Cost = "speed" if slower else "nothing" if is_free else "KV cache"
    return Remedy("reserve", values, cost, "; ".join(prices))


def _with_last_batch(
    short: demand.Shortfall,
    budget: Budget,
    counts: Mapping[Modality, int],
    rehearsed: RehearsedMemory,
) -> demand.Shortfall:
    """Add the last batch to a language step: storage stays until its last item leaves the cache."""
    outputs, resident = rehearsed.outputs, short.worst.resident
    # An encoder step makes room in the cache for its own outputs.
    encodes = isinstance(short.worst, demand.WorstStep)
    if encodes or outputs is None or not outputs.shared or not outputs.outlive_request:
        return short
    largest = max(budget.max_tokens_per_item.values(), default=0)
    at_once = budget.max_num_seqs * sum(counts.values()) * largest
    freed = max(0, min(budget.encoder_budget_tokens, at_once) - largest)
    more = replace(resident, tokens=resident.tokens + freed)
    return replace(short, worst=replace(short.worst, resident=more))


def _rehearse_with(
    values: demand.Values, decision: JudgedConfig, ask: RehearseAll
) -> tuple[Budget, demand.Shortfall, RehearsedMemory] | None:
    """Rehearse serving with these values; None if vLLM would not start."""
    args = {**decision.engine_args, **values}
    altered = replace(decision, engine_args=args, budget=_expected(decision.budget, values))
    (first,) = ask([altered.engine_args], encoder_steps(altered))
    if first is None or first.kv_cache_tokens is None or first.budget is None:
        return None
    steps = rehearse_worst_steps(altered, ask)
    short = find_shortfall(replace(altered, budget=first.budget), first, steps)
    return None if short is None else (first.budget, short, first)


def _expected(budget: Budget, values: demand.Values) -> Budget:
    """Return the budget as vLLM's `compute_mm_encoder_budget` computes it, before a rehearsal."""
    batch = values.get("max_num_batched_tokens", budget.max_num_batched_tokens)
    tokens = max(batch, max(budget.max_tokens_per_item.values(), default=0))
    if "max_num_batched_tokens" not in values:
        tokens = budget.encoder_cache_size
    return replace(
        budget,
        max_num_seqs=values.get("max_num_seqs", budget.max_num_seqs),
        max_num_batched_tokens=batch,
        encoder_compute_budget=tokens,
        encoder_cache_size=tokens,
    )


def check_retention(
    predicted: Predicted, decision: JudgedConfig, accesses: Accesses
) -> Check | None:
    """Check the reserve for retained batches; None if nothing is shared, cached or rehearsed."""
    after = predicted.calibrated
    outputs = after.outputs if after else None
    if after is None or outputs is None or outputs.shared is False or not outputs.outlive_request:
        return None
    bound = _bound_retention(decision, accesses)
    every = list_demands(decision, after, predicted.steps)
    steps = (one for one in every if isinstance(one, demand.LanguageStep | demand.PromptsStep))
    language = max(steps, key=lambda one: one.nbytes, default=None)
    width = output_width(after, predicted.steps)
    if bound is None or language is None or not width:
        return None
    return retention_check(bound, width, language.peak_bytes, after.activation_peak_bytes)


def _bound_retention(decision: JudgedConfig, accesses: Accesses) -> demand.RetainedStorage | None:
    """Bound the storage that the corpus' own items retain; None without such items."""
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
    sizes: list[int] = []
    if known:
        times = Counter(index for request in accesses.requests() for index in set(request))
        every = (table.costs.get(accesses.items[i][0]) for i, count in times.items() if count > 1)
        sizes = [cost.embeds for cost in every if cost is not None and cost.embeds]
    else:
        for costs in map(table.columns_of, table.modalities()):
            embeds, rows = np.unique(costs.embeds[costs.embeds > 0], return_inverse=True)
            counts = np.bincount(rows, costs.counts[costs.embeds > 0])
            for size, count in zip(embeds.tolist(), counts.tolist(), strict=True):
                # The cache holds at most this number of one size.
                sizes += repeat(size, min(int(count), cache // size + 1))
    return demand.bound_retained_storage(sizes, cache, batch, known=known)
