"""The requests that some other setting might turn away: what they ask for, and their items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.derive.costs import CostTable
from mmcalib.derive.fit import PromptTokens, fit
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.limits import Count
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.workflows.decision.texts import Texts

# The smallest context that is looked at, and the fewest tokens that a step encodes by default.
LONG_TOKENS: Final = 2048
# More are too many to go through for each setting.
_MOST: Final = 2000


@dataclass(frozen=True, slots=True)
class LongRequest:
    """So many requests alike; `entry` is None of an item that stands for itself."""

    shapes: tuple[Shape, ...]
    count: int
    entry: PromptCount | None = None


def long_requests(
    prompts: PromptCensus, counts: Mapping[Modality, Count], default: CostTable, texts: Texts
) -> tuple[LongRequest, ...] | None:
    """Those that have more than `LONG_TOKENS` by default, in one item or together with their text;
    without requests each item stands for one. None where they are too many.
    """
    found = tuple(islice(_long(prompts, counts, default, texts), _MOST + 1))
    return None if len(found) > _MOST else found


def shapes_of(requests: Sequence[LongRequest] | None) -> frozenset[Shape]:
    """Those of their items."""
    return frozenset(shape for request in requests or () for shape in request.shapes)


def turned_away(
    requests: Sequence[LongRequest],
    costs: Mapping[Shape, ItemCost],
    budget: Budget,
    texts: Texts,
    reserve_tokens: int,
    *,
    encoder_decoder: bool,
) -> int:
    """How many vLLM refuses where items have these costs: for one that it does not take, or holds
    nowhere, or because they are longer than the context.
    """
    refused, left = 0, list[PromptTokens]()
    for request in requests:
        items = [costs.get(shape) for shape in request.shapes]
        taken = [i for i in items if i is not None and i.embeds <= budget.encoder_budget_tokens]
        if len(taken) < len(items):
            refused += request.count
            continue
        tokens = 0 if encoder_decoder else sum(item.tokens for item in taken)
        left.append(_prompt(request, tokens, texts))
    found = fit(left, reserve_tokens, budget.max_model_len)
    return refused + (found.prompts_too_long if found else 0)


def _long(
    prompts: PromptCensus, counts: Mapping[Modality, Count], default: CostTable, texts: Texts
) -> Iterator[LongRequest]:
    admitted = {modality: count.value for modality, count in counts.items()}
    if not prompts.prompts():
        for modality in default.modalities():
            costs = default.of(modality)
            for cost in costs.take(costs.tokens > LONG_TOKENS) if admitted.get(modality) else ():
                yield LongRequest((cost.shape,), cost.count)
        return
    for entry in prompts.signatures():
        shapes = tuple(entry.signature.shapes)
        items = [default.costs[shape] for shape in shapes if shape in default.costs]
        if len(items) < len(shapes) or not entry.signature.within(admitted):
            continue
        text = texts.tokens(entry).most or 0
        one = max((item.embeds for item in items), default=0)
        if max(one, sum(item.tokens for item in items) + text) > LONG_TOKENS:
            yield LongRequest(shapes, entry.count, entry)


def _prompt(request: LongRequest, tokens: int, texts: Texts) -> PromptTokens:
    entry = request.entry
    if entry is None:
        return PromptTokens("", request.count, tokens)
    asked = entry.signature.asked
    return PromptTokens(
        "",
        request.count,
        tokens,
        texts.tokens(entry),
        asked.answer_tokens,
        asked.least_answer_tokens,
    )
