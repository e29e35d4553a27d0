"""Checks of limit_mm_per_prompt, size hints and flat processor options."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import Check, yaml_line
from mmcalib.checks.facts import CheckFacts
from mmcalib.domain.shapes import MODALITIES, Modality, Shape
from mmcalib.limits.effects import ItemOutcome
from mmcalib.limits.values import KWARGS, LIMIT, SIZES, limit_options
from mmcalib.releases.constants import DEFAULT_ITEM_LIMIT


def check_written_limits(facts: CheckFacts) -> Iterator[Check]:
    """Find names in `limit_mm_per_prompt` that this model does not have."""
    limits, taken = facts.configuration.engine_args.get(LIMIT) or {}, facts.model.modalities
    for modality in limits:
        if modality in taken:
            yield from _misspelt(limits, modality)
            continue
        if limit_options(limits, modality).get("count") == 0 and modality in MODALITIES:
            continue
        near = difflib.get_close_matches(modality, list(taken), n=1)
        remedy = f"remove it from {LIMIT.replace('_', '-')}"
        if near:
            remedy = yaml_line(LIMIT, {near[0]: limits[modality]})
        takes = f"the model takes {', '.join(taken)}"
        detail = f"{takes}; vLLM silently ignores a limit of {modality}"
        yield Check(ids.LIMIT_OF.of(modality), "fail" if near else "warn", detail, remedy)


def _misspelt(limits: Mapping[str, Any], modality: str) -> Iterator[Check]:
    given, known = limit_options(limits, modality), ("count", *SIZES.get(modality, ()))
    for name in given:
        if name not in known:
            detail = f"vLLM ignores {name} without a word: {modality} has {', '.join(known)}"
            remedy = yaml_line(LIMIT, {modality: {n: v for n, v in given.items() if n in known}})
            yield Check(ids.LIMIT_OF.of(f"{modality}: {name}"), "warn", detail, remedy)


def check_every_limited(facts: CheckFacts) -> Iterator[Check]:
    """Warn about modalities without a limit, which vLLM sets to 999."""
    judged, taken = facts.configuration, facts.model.modalities
    limits, budget = judged.engine_args.get(LIMIT) or {}, judged.budget
    missing = [m for m in taken if m not in limits]
    if not missing:
        return
    largest = {m: budget.max_tokens_per_item.get(m, 0) for m in missing}
    each = "; ".join(f"one {m} may take {tokens:,} tokens" for m, tokens in largest.items())
    names = ", ".join(missing)
    detail = f"no limit for {names}, so a prompt may carry {DEFAULT_ITEM_LIMIT}: {each}"
    known = {m: limits.get(m, 1) for m in taken}
    remedy = f"{yaml_line(LIMIT, known)}, or the counts that you serve"
    worst, without = budget.profiled_modality, facts.tries.without
    if worst in missing:
        detail += f"; {worst} sets the encoder budget of {budget.encoder_budget_tokens:,} tokens"
        if without is not None:
            if without.encoder_budget_tokens < budget.encoder_budget_tokens:
                less = f"{without.encoder_budget_tokens:,} with {worst}: 0{facts.tries.gain}"
                detail += f", {less}"
            if limits or worst != next(iter(taken)):
                remedy = f"{yaml_line(LIMIT, {**known, worst: 0})} if you serve no {worst}"
    yield Check(ids.UNLIMITED, "warn", detail, remedy)


def check_given_counts(facts: CheckFacts) -> Iterator[Check]:
    """Warn about a --count for a modality that the model does not take."""
    taken = facts.configuration.counts
    for modality, count in facts.policy.count.items():
        if count and modality not in taken:
            option, takes = f"--count {modality}={count}", f"the model takes {', '.join(taken)}"
            detail = f"{takes}; {option} has no effect"
            yield Check(ids.LIMIT_OF.of(modality), "warn", detail, f"leave out {option}")


def flat_option_check(
    name: str,
    moved: Mapping[Modality, tuple[Shape, ItemOutcome, ItemOutcome]],
    remedies: Mapping[Modality, Mapping[str, Any]],
) -> Check | None:
    """Warn about a flat option that changes several modalities; `remedies` change one each."""
    if len(moved) < 2:
        return None
    cases = "; ".join(
        f"{m} of {shape}: {before.tokens:,} → {after.tokens:,} tokens"
        for m, (shape, before, after) in moved.items()
    )
    lines = [f"{yaml_line(KWARGS, args[KWARGS])}  # only for {m}" for m, args in remedies.items()]
    detail = f"{name} has no modality and changes {' and '.join(moved)}: {cases}"
    return Check(ids.SCOPE.of(name), "warn", detail, "\n".join(lines))
