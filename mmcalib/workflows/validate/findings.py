"""What follows from the configuration and vLLM's budget for it, before any item is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmcalib.checks.catalogue import limits, prompts, reserve
from mmcalib.checks.catalogue.corpus import MEDIA_SERVED
from mmcalib.checks.check import Check
from mmcalib.checks.dialect import Dialect, line
from mmcalib.checks.facts import CheckFacts, Fullest, Tries
from mmcalib.checks.judge import judge
from mmcalib.checks.rule import CheckStage
from mmcalib.derive.cache_floor import CacheFloor, cache_floor, within_context
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.validate.memory import ServedMemory, gain, room
from mmcalib.workflows.validate.subject import Subject, accepts, takes_context


def findings(
    subject: Subject, asks: BudgetSource, memory: ServedMemory | None, *, has_data: bool
) -> Iterator[Check]:
    """In the order in which they would hurt. What real items decide is left to them."""
    args = subject.engine_args
    if args.get("language_model_only"):
        detail = "language_model_only: every image, video and clip is rejected"
        yield Check(MEDIA_SERVED, "warn", detail, "remove language-model-only")
        return
    gained = gain(memory, subject) if memory else ""
    without = _without(subject, asks)
    prompt = None if has_data else _fullest(subject)
    longer = prompt is not None and takes_fullest(subject, asks, prompt)
    tries = Tries(
        without=without,
        gain=gained,
        cures=_cures(subject, asks),
        room=room(memory, subject) if memory else None,
        cache_floor=None if subject.opened.encoder_decoder else _cache_floor(subject),
    )
    yield from judge(
        CheckStage.WRITTEN,
        CheckFacts(
            dialect=Dialect.LINES,
            configuration=subject,
            prompt=prompt,
            longer=longer,
            given_model=subject.opened,
            given_tries=tries,
        ),
    )


def _cache_floor(subject: Subject) -> CacheFloor:
    """Of as many largest items as the limits admit and the context holds."""
    limit = subject.budget.encoder_budget_tokens
    counts = {m: count.value for m, count in subject.counts.items()}
    admitted = within_context(counts, subject.table, subject.plain, limit)
    return cache_floor(admitted, subject.table, subject.plain, limit)


def _fullest(subject: Subject) -> Fullest | None:
    """A prompt of vLLM's own largest items; None where items are no part of the context."""
    if subject.opened.encoder_decoder:
        return None
    return fullest(subject, subject.budget.max_tokens_per_item, own=False)


def fullest(subject: Subject, largest: Mapping[Modality, int], *, own: bool) -> Fullest:
    """A prompt of as many of these largest items as the limits name."""
    return Fullest(prompts.fullest(subject.counts, subject.engine_args, largest), own)


def takes_fullest(subject: Subject, asks: BudgetSource, prompt: Fullest) -> bool:
    """Whether the model takes a longer context than the configuration has, which holds it."""
    total = prompts.needed(prompt.most, TEXT_RESERVE_TOKENS)
    return total > subject.budget.max_model_len and takes_context(asks, subject.engine_args, total)


def _cures(subject: Subject, asks: BudgetSource) -> list[str]:
    """Remedies of R4 in tokens that vLLM's own budget was asked about."""
    args = subject.engine_args
    if reserve.embeddings_alone(subject.budget) is not None:
        return []
    if args.get("skip_mm_profiling"):
        return ["remove skip-mm-profiling"]
    if subject.adequacy.passes:
        return []
    mended = [
        _mended(c, subject, asks) for c in reserve.cures(args, subject.budget, subject.opened)
    ]
    tried = [lines for lines in mended if lines]
    if not mended:
        plain = _mended(reserve.Cure(args, ""), subject, asks)
        tried += [plain] if plain else []
    return tried


def _mended(cure: reserve.Cure, subject: Subject, asks: BudgetSource) -> str:
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


def _without(subject: Subject, asks: BudgetSource) -> Budget | None:
    """The budget if the modality that sets it, and that nobody limits, were switched off."""
    args, worst = subject.engine_args, subject.budget.profiled_modality
    written = args.get(limits.LIMIT) or {}
    others = [m for m, c in subject.counts.items() if c.value and m != worst]
    if worst is None or worst in written or not others:
        return None
    return accepts(asks, {**args, limits.LIMIT: {**written, worst: 0}})
