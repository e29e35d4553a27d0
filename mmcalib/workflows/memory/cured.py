"""Settings with which an under-reserved configuration passes, each rehearsed before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mmcalib.checks.facts import Configuration, Configured
from mmcalib.derive.demand import Engine, Shortfall, WorstStep, larger, smaller
from mmcalib.derive.pools import fixed_pool
from mmcalib.domain.budget import Budget
from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.domain.shapes import Modality
from mmcalib.workflows.memory.worst_steps import configurations, encoder_steps, shortfall

# Rehearses configurations, the first with steps of the encoder; None where one ends early.
Ask = Callable[[Sequence[Mapping[str, Any]], tuple[EncoderStep, ...]], Sequence[Rehearsed | None]]

# Arithmetic takes what does not follow from the setting for fixed: the second try knows better.
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Cured:
    """Settings under which it passes, and what it then reserves and takes."""

    engine: Engine
    found: Shortfall
    rehearsed: Rehearsed


def cured(found: Shortfall, decision: Configuration, ask: Ask) -> Iterator[Cured]:
    """Less at once, then more reserved, as far as either passes, with what views keep on top."""
    counts = {m: count.value for m, count in decision.counts.items()}
    for cure in (smaller, larger):
        at, short, engine = decision.budget, found, Engine()
        for _ in range(_TRIES):
            step = cure(short, at, counts)
            if step is None:
                break
            engine = Engine(**{**engine.values, **step.values})
            answer = _under(engine, decision, ask)
            if answer is None:
                break
            at, found_now, rehearsed = answer
            short = _beside_last_batch(found_now, at, counts, rehearsed)
            if short.passes:
                yield Cured(engine, found_now, rehearsed)
                break


def with_less_kv_cache(
    found: Shortfall, before: Rehearsed, decision: Configuration, ask: Ask
) -> Cured | None:
    """A KV cache that leaves room for what is short, with as many sequences as leave half of the
    cache where all of them leave less; None where too little of it is left then.
    """
    seqs = _sequences_for_half(found, before, decision)
    if seqs is not None:
        fewer = _under(Engine(max_num_seqs=seqs), decision, ask)
        if fewer is None:
            return None
        _, found, before = fewer
    pool = fixed_pool(before, max(0, found.nbytes))
    if pool is None:
        return None
    engine = Engine(seqs, kv_cache_memory_bytes=pool.kv_cache_memory_bytes)
    answer = _under(engine, decision, ask)
    if answer is None or not answer[1].passes:
        return None
    return Cured(engine, *answer[1:])


def _sequences_for_half(found: Shortfall, before: Rehearsed, decision: Configuration) -> int | None:
    """How many sequences' items half of the KV cache holds; None where it holds those of all, or
    where it is not the number of items that takes more than is reserved.
    """
    step = found.worst
    if not isinstance(step, WorstStep) or not step.items:
        return None
    room = found.reserved_bytes + before.kv_cache_bytes // 2 - step.resident.nbytes
    count = decision.counts[step.modality].value or 1
    seqs = max(1, int(room * step.items / step.peak_bytes) // count)
    return seqs if seqs < decision.budget.max_num_seqs and seqs * count < step.items else None


def _beside_last_batch(
    found: Shortfall, budget: Budget, counts: Mapping[Modality, int], rehearsed: Rehearsed
) -> Shortfall:
    """The same, and beside the language model the batch that goes out of the encoder cache item by
    item: while one is left, the storage of all of them lives, where they share one. What is asked
    for again keeps more, of which `what cached items keep` tells.
    """
    outputs, resident = rehearsed.outputs, found.worst.resident
    # To encode a step makes room for it.
    encodes = isinstance(found.worst, WorstStep)
    if encodes or outputs is None or not outputs.shared or not outputs.outlive:
        return found
    largest = max(budget.max_tokens_per_item.values(), default=0)
    at_once = budget.max_num_seqs * sum(counts.values()) * largest
    gone = max(0, min(budget.encoder_budget_tokens, at_once) - largest)
    more = replace(resident, tokens=resident.tokens + gone)
    return replace(found, worst=replace(found.worst, resident=more))


def _under(
    engine: Engine, decision: Configuration, ask: Ask
) -> tuple[Budget, Shortfall, Rehearsed] | None:
    """What serving would take under these values; None where it would not start."""
    altered = Configured(
        engine_args=engine.on(decision.engine_args),
        counts=decision.counts,
        budget=_expected(decision.budget, engine),
        plain=decision.plain,
        adequacy=decision.adequacy,
        table=decision.table,
    )
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


def _expected(budget: Budget, engine: Engine) -> Budget:
    """The budget as vLLM would compute it (`compute_mm_encoder_budget`), to know which steps to
    rehearse.
    """
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
