"""What follows from the configuration and vLLM's budget for it, before any item is measured."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.checks import Check
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.derive.traps import limits, reserve
from mmcalib.engine.messages import Budget
from mmcalib.errors import EngineDied, EngineError
from mmcalib.job.decision.budgets import Budgets
from mmcalib.job.validate.memory import Foresight
from mmcalib.job.validate.subject import Subject, here


def findings(
    subject: Subject, asks: Budgets, foresight: Foresight | None, *, has_data: bool
) -> Iterator[Check]:
    """In the order in which they would hurt. What real items decide is left to them."""
    args, opened, budget = subject.engine_args, subject.opened, subject.budget
    if args.get("language_model_only"):
        detail = "language_model_only: every image, video and clip is rejected"
        yield Check("media served", "warn", detail, "remove language-model-only")
        return
    yield from limits.limit_findings(args, opened)
    gain = foresight.gain(subject) if foresight else ""
    yield from limits.unwritten(args, opened, budget, _without(subject, asks), gain)
    if not has_data:
        fits = limits.prompt_fits(subject.counts, args, budget, opened.knobs, TEXT_RESERVE_TOKENS)
        if fits is not None:
            yield fits
    enough = reserved(subject, asks)
    yield from reserve.hint_findings(args, opened, budget, subject.plain, enough.remedy)
    room = foresight.room() if foresight else None
    skipped = reserve.skipped_profile(args, subject.adequacy, room)
    if skipped is not None:
        yield skipped
    yield enough


def reserved(subject: Subject, asks: Budgets) -> Check:
    """R4 in tokens, with remedies that vLLM's own budget was asked about."""
    found, args = subject.adequacy, subject.engine_args
    tried = []
    if args.get("skip_mm_profiling"):
        tried.append("remove skip-mm-profiling")
    elif not found.passes:
        for cure in reserve.cures(args, subject.budget, subject.opened):
            budget = _asked(asks, {**cure.engine_args})
            if budget is None:
                continue
            counts = limits.counts(cure.engine_args, subject.opened)
            cured = reserve.reserved(cure.engine_args, budget, counts)
            if cured.passes:
                tried.append(f"{cure.lines} ({cured.ratio:.2f})")
        tried += _whole_items(subject, asks)
    return reserve.reserved_check(found, subject.budget.profiled_modality, tried)


def _whole_items(subject: Subject, asks: Budgets) -> list[str]:
    """A batch of whole items: the profile rounds down to them."""
    budget, args = subject.budget, subject.engine_args
    largest = max(budget.max_tokens_per_item.values(), default=0)
    if not largest or limits.unhinted(args) != args:
        return []
    whole = max(1, budget.max_num_batched_tokens // largest) * largest
    tried = {**args, "max_num_batched_tokens": whole}
    asked = _asked(asks, tried)
    if asked is None or not reserve.reserved(tried, asked, subject.counts).passes:
        return []
    return [f"max-num-batched-tokens: {whole}"]


def _without(subject: Subject, asks: Budgets) -> Budget | None:
    """The budget if the modality that sets it, and that nobody limits, were switched off."""
    args, worst = subject.engine_args, subject.budget.profiled_modality
    written = args.get(limits.LIMIT) or {}
    others = [m for m, c in subject.counts.items() if c.value and m != worst]
    if worst is None or worst in written or not others:
        return None
    return _asked(asks, {**args, limits.LIMIT: {**written, worst: 0}}, build_dummy=False)


def _asked(asks: Budgets, args: dict[str, object], *, build_dummy: bool = True) -> Budget | None:
    try:
        return asks.of(here(args, asks.opened.device), build_dummy=build_dummy)
    except EngineDied:
        raise
    except EngineError:
        return None
