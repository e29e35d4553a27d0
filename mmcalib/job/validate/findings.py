"""What follows from the configuration and vLLM's budget for it, before any item is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmcalib.checks.catalogue import limits, prompts, reserve
from mmcalib.checks.catalogue.corpus import MEDIA_SERVED
from mmcalib.checks.catalogue.processor_cache import cache_findings
from mmcalib.checks.check import Check
from mmcalib.checks.dialect import line
from mmcalib.derive.cache_floor import CacheFloor, cache_floor, within_context
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.domain.budget import Budget
from mmcalib.job.decision.budgets import Budgets
from mmcalib.job.validate.memory import ServedMemory, gain, room
from mmcalib.job.validate.subject import Subject, accepts, takes_context


def findings(
    subject: Subject, asks: Budgets, memory: ServedMemory | None, *, has_data: bool
) -> Iterator[Check]:
    """In the order in which they would hurt. What real items decide is left to them."""
    args, opened, budget = subject.engine_args, subject.opened, subject.budget
    if args.get("language_model_only"):
        detail = "language_model_only: every image, video and clip is rejected"
        yield Check(MEDIA_SERVED, "warn", detail, "remove language-model-only")
        return
    yield from limits.limit_findings(args, opened)
    gained = gain(memory, subject) if memory else ""
    yield from limits.unwritten(args, opened, budget, _without(subject, asks), gained)
    if not has_data:
        fits = _prompt_fits(subject, asks)
        if fits is not None:
            yield fits
    enough = reserved(subject, asks)
    yield from reserve.hint_findings(args, opened, budget, subject.plain, enough.remedy)
    left = room(memory, subject) if memory else None
    skipped = reserve.skipped_profile(args, subject.adequacy, left)
    if skipped is not None:
        yield skipped
    cached = None if opened.encoder_decoder else cache_findings(args, _cache_floor(subject))
    if cached is not None:
        yield cached
    yield enough


def _cache_floor(subject: Subject) -> CacheFloor:
    """Of as many largest items as the limits admit and the context holds."""
    limit = subject.budget.encoder_budget_tokens
    counts = {m: count.value for m, count in subject.counts.items()}
    admitted = within_context(counts, subject.plain, limit)
    return cache_floor(admitted, subject.table, subject.plain, limit)


def _prompt_fits(subject: Subject, asks: Budgets) -> Check | None:
    """A prompt of vLLM's own largest items; None where items are no part of the context."""
    if subject.opened.encoder_decoder:
        return None
    largest = subject.budget.max_tokens_per_item
    return fullest_fits(subject, asks, largest, own=False)


def fullest_fits(
    subject: Subject, asks: Budgets, largest: Mapping[str, int], *, own: bool
) -> Check | None:
    """A prompt of as many of these largest items as the limits name."""
    args, budget = subject.engine_args, subject.budget
    most = prompts.fullest(subject.counts, args, largest)
    total = prompts.needed(most, TEXT_RESERVE_TOKENS)
    longer = total > budget.max_model_len and takes_context(asks, args, total)
    knobs = subject.opened.knobs
    return prompts.prompt_fits(
        most, args, budget, knobs, TEXT_RESERVE_TOKENS, own=own, longer=longer
    )


def reserved(subject: Subject, asks: Budgets) -> Check:
    """R4 in tokens, with remedies that vLLM's own budget was asked about."""
    found, args = subject.adequacy, subject.engine_args
    alone = reserve.embeddings_alone(subject.budget)
    if alone is not None:
        return alone
    tried = []
    if args.get("skip_mm_profiling"):
        tried.append("remove skip-mm-profiling")
    elif not found.passes:
        mended = [
            _mended(c, subject, asks) for c in reserve.cures(args, subject.budget, subject.opened)
        ]
        tried += [lines for lines in mended if lines]
        if not mended:
            plain = _mended(reserve.Cure(args, ""), subject, asks)
            tried += [plain] if plain else []
    return reserve.reserved_check(found, subject.budget.profiled_modality, tried)


def _mended(cure: reserve.Cure, subject: Subject, asks: Budgets) -> str:
    """The lines of a cure, with a batch of whole items where it takes one, since the profile rounds
    down to them; empty where it does not help.
    """
    batch: dict[str, object] = {}
    for _ in range(2):
        args = {**cure.engine_args, **batch}
        budget = accepts(asks, args)
        if budget is None:
            return ""
        found = reserve.reserved(args, budget, limits.counts(args, subject.opened))
        if found.passes:
            lines = [cure.lines, *(line(name, value) for name, value in batch.items())]
            return f"{' and '.join(filter(None, lines))} ({found.ratio:.2f})"
        largest = max(budget.max_tokens_per_item.values(), default=0)
        if not largest:
            return ""
        whole = max(1, budget.max_num_batched_tokens // largest) * largest
        batch = {"max_num_batched_tokens": whole}
    return ""


def _without(subject: Subject, asks: Budgets) -> Budget | None:
    """The budget if the modality that sets it, and that nobody limits, were switched off."""
    args, worst = subject.engine_args, subject.budget.profiled_modality
    written = args.get(limits.LIMIT) or {}
    others = [m for m, c in subject.counts.items() if c.value and m != worst]
    if worst is None or worst in written or not others:
        return None
    return accepts(asks, {**args, limits.LIMIT: {**written, worst: 0}})
