"""Traps that items show: larger than the encoder cache, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import line, line_of
from mmcalib.derive.costs import CostTable, ItemCost, heaviest
from mmcalib.derive.nested import merged
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.domain.budget import Budget
from mmcalib.domain.knobs import Knob

ADMITTED = CheckId("items admitted")
ACCEPTED = CheckId("{} items accepted")
STILL_ACCEPTED = CheckId("items still accepted")
KEPT_WHOLE = CheckId("items kept whole")
CAP_HELD = CheckId("image cap held")
CAP = CheckId("{} cap")


def admitted(table: CostTable, budget: Budget, knobs: Iterable[Knob]) -> Check | None:
    """The encoder cache must hold each item of the corpus whole, or its request ends with HTTP
    400.
    """
    largest = heaviest(table.costs.values())
    if largest is None:
        return None
    limit = budget.encoder_budget_tokens
    over = [cost for cost in table.costs.values() if cost.embeds > limit]
    if not over:
        detail = f"largest item {largest.embeds:,} tokens, encoder cache {limit:,}"
        return Check(ADMITTED, "pass", f"{detail}: {largest.exemplar}")
    return Check(
        ADMITTED,
        "fail",
        f"{sum(cost.count for cost in over):,} items exceed the encoder cache of {limit:,} tokens "
        f"and end with HTTP 400; {largest.exemplar} takes {largest.embeds:,}",
        _room(largest, budget, knobs),
    )


def _room(item: ItemCost, budget: Budget, knobs: Iterable[Knob]) -> str:
    caps = (
        line_of(knob, value)
        for knob in knobs
        if knob.modality == item.shape.modality
        and (value := knob.value_for_item(budget.encoder_budget_tokens)) is not None
    )
    return " or ".join([*_larger(item.embeds, budget), *caps]) or "make such items smaller"


def _larger(embeds: int, budget: Budget) -> list[str]:
    """A batch that holds an item is of no use where the context does not."""
    return [line("max_num_batched_tokens", embeds)] if embeds < budget.max_model_len else []


def slower(
    knobs: Iterable[Knob], media_io: Mapping[str, Any], share: float
) -> dict[str, Any] | None:
    """`media_io_kwargs` with which the server keeps that share of a video's frames; None where no
    option of the loader does that.
    """
    for knob in knobs:
        fewer = knob.value_for_share(share) if knob.modality == "video" else None
        if fewer is not None:
            return merged(media_io, knob.kwargs(fewer))
    return None


def room(budget: Budget) -> int:
    """Tokens that one item may take: the encoder cache holds it, and the context with some text."""
    context = max(0, budget.max_model_len - TEXT_RESERVE_TOKENS)
    return min(budget.encoder_budget_tokens, context)


def probed(what: str, embeds: int, budget: Budget, media_io: Mapping[str, Any] | None) -> Check:
    """Without a corpus: a video that people do send. `media_io` was tried, and makes it fit."""
    limit, cache = room(budget), budget.encoder_budget_tokens
    held = f"the encoder cache holds {cache:,}"
    if limit < cache:
        held = f"the context of {budget.max_model_len:,} leaves {limit:,}"
    detail = f"{what} takes {embeds:,} tokens as the server samples it, {held}"
    if embeds <= limit:
        return Check(ADMITTED, "pass", detail)
    remedies = _larger(embeds, budget)
    if media_io is not None:
        remedies.append(line("media_io_kwargs", media_io))
    return Check(
        ADMITTED,
        "warn",
        f"{detail}: such a request ends with HTTP 400",
        " or ".join([*remedies, "--data DIR judges by your own media"]),
    )


def budgeted(budget: Budget) -> Check | None:
    """Without a corpus, and without videos: vLLM's own largest items."""
    if not budget.max_tokens_per_item:
        return None
    each = ", ".join(f"{m} {tokens:,}" for m, tokens in budget.max_tokens_per_item.items())
    held = f"the encoder cache holds {budget.encoder_budget_tokens:,}"
    return Check(ADMITTED, "pass", f"vLLM's own largest, in tokens: {each}; {held}")


def refusals(table: CostTable) -> Iterator[Check]:
    """Items that vLLM refuses under this configuration, by modality."""
    for modality in sorted({refusal.shape.modality for refusal in table.refusals}):
        refused = [r for r in table.refusals if r.shape.modality == modality]
        items, taken = sum(r.count for r in refused), sum(c.count for c in table.of(modality))
        first = refused[0]
        yield Check(
            ACCEPTED.of(modality),
            "fail" if items > taken else "warn",
            f"vLLM refuses {items:,} of {items + taken:,}, such as {first.exemplar} "
            f"({first.shape}): {first.reason}",
            "remove or convert them: such requests fail",
        )
