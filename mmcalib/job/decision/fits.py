"""The longest covered prompt against the context (R5)."""

from __future__ import annotations

from collections.abc import Mapping

from mmcalib.census.prompts import PromptCensus
from mmcalib.census.shapes import Modality
from mmcalib.derive.costs import CostTable
from mmcalib.derive.fit import Fit, PromptTokens, fit, prompt_tokens
from mmcalib.derive.limits import Count
from mmcalib.engine.messages import Budget

# A context is written in whole KV blocks.
_BLOCK_TOKENS = 16


def longest_prompt(
    prompts: PromptCensus,
    table: CostTable,
    counts: Mapping[Modality, Count],
    budget: Budget,
    reserve_tokens: int,
    max_model_len: int,
) -> Fit | None:
    """The covered prompt with most media tokens; None where nothing is served.

    Without requests: a prompt with as many of the largest items as the limits admit, of a modality
    that the corpus lacks vLLM's own largest.
    """
    tokens = {shape: cost.tokens for shape, cost in table.costs.items()}
    if not prompts.prompts():
        return fit([_fullest(table, counts, budget)], reserve_tokens, max_model_len)
    admitted = {m: count.value for m, count in counts.items()}
    counted = [
        prompt_tokens(e.exemplar.origin, e.count, e.signature.shapes, tokens)
        for e in prompts.signatures()
        if e.signature.within(admitted)
    ]
    # Files that no request mentions are served too, at least each on its own.
    served = [table.heaviest(m) for m, c in counts.items() if c.value]
    alone = [PromptTokens(c.exemplar, c.count, c.tokens) for c in served if c]
    return fit(
        [*(prompt for prompt in counted if prompt is not None), *alone],
        reserve_tokens,
        max_model_len,
    )


def smallest_context(longest: Fit | None, most_tokens: int) -> int:
    """The smallest max_model_len that holds the longest prompt and its reserve, in whole KV blocks
    and at most `most_tokens`.
    """
    if longest is None:
        return most_tokens
    blocks = -(-longest.needed_tokens // _BLOCK_TOKENS)
    return min(blocks * _BLOCK_TOKENS, most_tokens)


def _fullest(table: CostTable, counts: Mapping[Modality, Count], budget: Budget) -> PromptTokens:
    total = 0
    for modality, count in counts.items():
        largest = table.heaviest(modality)
        unseen = budget.max_tokens_per_item.get(modality, 0)
        total += count.value * (largest.tokens if largest else unseen)
    most = " and ".join(
        f"the largest {m}" if c.value == 1 else f"{c.value} times the largest {m}"
        for m, c in counts.items()
        if c.value
    )
    return PromptTokens(f"a prompt of {most}", 1, total)
