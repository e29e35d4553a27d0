"""Size hints of `limit_mm_per_prompt`: what each shrinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.checks.catalogue.limits import LIMIT, hint, options
from mmcalib.checks.catalogue.reserve import reserved_in_tokens
from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import line
from mmcalib.checks.facts import CheckFacts, Need
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.domain.budget import Budget, Dummy
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality

SIZE_HINT = CheckId("{} size hint")
HINT_WITHIN = CheckId("{} hint within the maximum")


def hint_findings(
    engine_args: Mapping[str, Any],
    opened: ModelInfo,
    budget: Budget,
    plain: Budget,
    remedy: str,
) -> Iterator[Check]:
    """Per size hint: whether vLLM heeds it, and what it shrinks. `plain` is the budget of the same
    configuration without hints; both with their dummies. `remedy` is what makes it honest.
    """
    limits = engine_args.get(LIMIT) or {}
    for modality in opened.modalities:
        size = hint(limits, modality)
        dummy, largest = budget.dummies.get(modality), plain.dummies.get(modality)
        if size and dummy is not None and largest is not None:
            yield from _clamped(limits, modality, size, largest)
            yield _shrunk(limits, modality, budget, plain, dummy, remedy)


def _clamped(
    limits: Mapping[str, Any], modality: Modality, size: Mapping[str, int], largest: Dummy
) -> Iterator[Check]:
    above = {axis: most for axis, most in largest.size.items() if size.get(axis, 0) > most}
    if not above:
        return
    asked = ", ".join(f"{axis} {size[axis]:,}" for axis in above)
    takes = ", ".join(f"{axis} {most:,}" for axis, most in above.items())
    kept = {n: v for n, v in options(limits, modality).items() if n not in above}
    value = kept if len(kept) > 1 or "count" not in kept else kept["count"]
    yield Check(
        HINT_WITHIN.of(modality),
        "warn",
        f"{asked}: above vLLM's own largest {modality} ({takes}), so it is ignored with a line "
        "in the log; a hint can only make the profiled item smaller",
        line(LIMIT, {**limits, modality: value}),
    )


def _shrunk(
    limits: Mapping[str, Any],
    modality: Modality,
    budget: Budget,
    plain: Budget,
    dummy: Dummy,
    remedy: str,
) -> Check:
    """A hint that shrinks the profiled item alone is a trap; one that shrinks the encoder cache too
    makes larger items impossible.
    """
    name = SIZE_HINT.of(modality)
    size = ", ".join(f"{axis} {value:,}" for axis, value in hint(limits, modality).items())
    most, before = budget.max_tokens_per_item[modality], plain.max_tokens_per_item[modality]
    if dummy.embeds < most:
        detail = (
            f"{size}: the profiled {modality} shrinks to {dummy.embeds:,} tokens, what one may "
            f"take stays {most:,}"
        )
        if budget.profiled_modality != modality:
            other = budget.profiled_modality
            return Check(name, "warn", f"{detail}; without effect here: vLLM profiles {other}")
        return Check(name, "fail", f"{detail}: nobody reserves the difference", remedy)
    if most < before and budget.encoder_budget_tokens < before:
        detail = f"{size}: one {modality} takes at most {most:,} tokens instead of {before:,}"
        return Check(
            name,
            "warn",
            f"{detail}; one of more than the {budget.encoder_budget_tokens:,} tokens that the "
            "encoder cache holds ends with HTTP 400",
            "--data DIR checks it against your own media",
        )
    detail = f"{size}: the profiled {modality} costs {dummy.embeds:,} tokens"
    if dummy.embeds == plain.dummies[modality].embeds:
        detail += " with it and without: it changes nothing"
    return Check(name, "pass", detail)


def _derived(facts: CheckFacts) -> Iterator[Check]:
    for modality, size in facts.decision.hints.items():
        named = ", ".join(f"{axis} {value}" for axis, value in size.items())
        dummy = facts.configuration.budget.dummies[modality].embeds
        detail = f"{named}: vLLM's dummy costs {dummy} tokens, as the largest item does"
        yield Check(SIZE_HINT.of(modality), "pass", detail)
    for modality, why in facts.decision.refused_hints.items():
        yield Check(
            SIZE_HINT.of(modality), "pass", f"none emitted: with the corpus' largest size {why}"
        )


def _written(facts: CheckFacts) -> Iterator[Check]:
    judged = facts.configuration
    remedy = reserved_in_tokens(facts).remedy
    yield from hint_findings(judged.engine_args, facts.model, judged.budget, judged.plain, remedy)


RULES = (
    Rule((SIZE_HINT,), {CheckStage.DECIDED: 130}, _derived, frozenset({Need.DECISION})),
    Rule(
        (SIZE_HINT, HINT_WITHIN),
        {CheckStage.WRITTEN: 40},
        _written,
        frozenset({Need.MODEL, Need.TRIES}),
    ),
)
