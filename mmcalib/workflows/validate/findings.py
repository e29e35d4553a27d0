"""What follows from the configuration and vLLM's budget for it, before any item is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mmcalib.checks import items, limits, reserve
from mmcalib.checks.check import Check
from mmcalib.checks.corpus import MEDIA_SERVED
from mmcalib.checks.dialect import Dialect, line
from mmcalib.checks.facts import CheckFacts, CheckStage, Fullest, Tries
from mmcalib.checks.judge import judge
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.derive.processor_cache import CacheFloor, cache_floor, within_context
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality
from mmcalib.wording import several
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.read import ReadCorpus
from mmcalib.workflows.validate.memory import ServedMemory, gain, kv_cache_words, plan_command, room
from mmcalib.workflows.validate.subject import Subject, accepts, takes_context


def findings(
    subject: Subject,
    asks: BudgetSource,
    memory: ServedMemory | None,
    corpus: ReadCorpus | None,
    config: str,
) -> Iterator[Check]:
    """Of the file `config`, in the order in which they would hurt. What real items decide is left
    to them.
    """
    args = subject.engine_args
    if args.get("language_model_only"):
        detail = "language_model_only: every image, video and clip is rejected"
        yield Check(MEDIA_SERVED, "warn", detail, "remove language-model-only")
        return
    gained = gain(memory, subject) if memory else ""
    without = _without(subject, asks)
    prompt = None if corpus is not None else _fullest(subject)
    longer = prompt is not None and takes_fullest(subject, asks, prompt)
    tries = Tries(
        without=without,
        gain=gained,
        cures=_cures(subject, asks, memory, corpus, config),
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
    return Fullest(items.fullest(subject.counts, subject.engine_args, largest), own)


def takes_fullest(subject: Subject, asks: BudgetSource, prompt: Fullest) -> bool:
    """Whether the model takes a longer context than the configuration has, which holds it."""
    total = items.needed(prompt.most, TEXT_RESERVE_TOKENS)
    return total > subject.budget.max_model_len and takes_context(asks, subject.engine_args, total)


@dataclass(frozen=True, slots=True)
class _Remedy:
    """Lines that make R4 pass in tokens, and what they cost in words. `smaller` is the share of the
    user's items that they make smaller, 1 where that is not known; `lost_bytes` of KV cache go with
    them, where rehearsed.
    """

    lines: str
    costs: str
    smaller: float
    lost_bytes: int

    def __str__(self) -> str:
        """Lines of YAML, with what they cost as a comment."""
        return f"{self.lines}  # {self.costs}"


def _cures(
    subject: Subject,
    asks: BudgetSource,
    memory: ServedMemory | None,
    corpus: ReadCorpus | None,
    config: str,
) -> list[str]:
    """Remedies of R4 in tokens that vLLM's own budget was asked about, the harmless one first. One
    that would not start needs more, which `plan` finds.
    """
    args = subject.engine_args
    if reserve.embeddings_alone(subject.budget) is not None:
        return []
    if args.get("skip_mm_profiling"):
        return ["remove skip-mm-profiling"]
    if subject.adequacy.passes:
        return []
    every = list(reserve.cures(args, subject.budget, subject.opened)) or [reserve.Cure(args, "")]
    tried = (_mended(cure, subject, asks) for cure in every)
    found = [
        _priced(cure, budget, subject, memory, corpus, config)
        for cure, budget in filter(None, tried)
    ]
    return list(map(str, sorted(found, key=lambda one: (one.smaller, one.lost_bytes))))


def _mended(
    cure: reserve.Cure, subject: Subject, asks: BudgetSource
) -> tuple[reserve.Cure, Budget] | None:
    """The cure, with a batch of whole items where it takes one, since the profile rounds down to
    them, and its budget; None where it does not help.
    """
    batch: dict[str, object] = {}
    for _ in range(2):
        args = {**cure.engine_args, **batch}
        budget = accepts(asks, args)
        if budget is None:
            return None
        if reserve.reserved(args, budget, limits.counts(args, subject.opened)).passes:
            lines = [cure.lines, *(line(name, value) for name, value in batch.items())]
            whole = " and ".join(filter(None, lines))
            return replace(cure, engine_args=args, lines=whole), budget
        largest = max(budget.max_tokens_per_item.values(), default=0)
        if not largest:
            return None
        whole_items = max(1, budget.max_num_batched_tokens // largest) * largest
        batch = {"max_num_batched_tokens": whole_items}
    return None


def _priced(
    cure: reserve.Cure,
    budget: Budget,
    subject: Subject,
    memory: ServedMemory | None,
    corpus: ReadCorpus | None,
    config: str,
) -> _Remedy:
    """The cure with what it costs in KV cache and in the size of items."""
    before = memory.config if memory else None
    after = memory.prediction.tried(cure.engine_args) if memory else None
    share, words = _smaller(cure, budget, subject, corpus)
    if memory is None or before is None or after is None:
        return _Remedy(cure.lines, words, share, 0)
    lost, costs = before.kv_cache_bytes - after.kv_cache_bytes, kv_cache_words(before, after)
    if after.kv_cache_tokens is None:
        alone = f"{cure.lines} alone {costs}"
        return _Remedy(plan_command(memory, config), alone, share, lost)
    return _Remedy(cure.lines, f"{costs}; {words}", share, lost)


def _smaller(
    cure: reserve.Cure, budget: Budget, subject: Subject, corpus: ReadCorpus | None
) -> tuple[float, str]:
    """The share of items that a cure makes smaller, in words too."""
    if cure.knob is None:
        return 0, "makes no item smaller"
    modality = cure.knob.modality
    counted = corpus.census.counts(modality) if corpus is not None else None
    if counted is None or not counted.items():
        most, now = (one.max_tokens_per_item.get(modality, 0) for one in (budget, subject.budget))
        return 1, f"makes {modality}s of more than {most:,} tokens smaller (now up to {now:,})"
    smaller = int(counted.counts[cure.knob.changed(counted.shapes, cure.value)].sum())
    of = several(counted.items(), modality)
    return smaller / counted.items(), f"makes {smaller:,} of {of} smaller"


def _without(subject: Subject, asks: BudgetSource) -> Budget | None:
    """The budget if the modality that sets it, and that nobody limits, were switched off."""
    args, worst = subject.engine_args, subject.budget.profiled_modality
    written = args.get(limits.LIMIT) or {}
    others = [m for m, c in subject.counts.items() if c.value and m != worst]
    if worst is None or worst in written or not others:
        return None
    return accepts(asks, {**args, limits.LIMIT: {**written, worst: 0}})
