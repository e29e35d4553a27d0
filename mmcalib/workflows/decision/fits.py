"""The longest covered prompt against the context (R5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.derive.costs import CostTable
from mmcalib.derive.fit import Fit, PromptTokens, fit, item_tokens, unsettled
from mmcalib.derive.limits import Count
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality
from mmcalib.releases.constants import BLOCK_TOKENS
from mmcalib.workflows.decision.texts import Texts

# So many of the longest texts are counted before the others are looked at again, at last all.
_STEPS = (64, 1024, None)


def longest_prompt(
    prompts: PromptCensus,
    table: CostTable,
    counts: Mapping[Modality, Count],
    budget: Budget,
    reserve_tokens: int,
    max_model_len: int,
    texts: Texts,
    *,
    encoder_decoder: bool = False,
) -> Fit | None:
    """The covered prompt that needs the longest context; None where nothing is served.

    Without requests: a prompt with as many of the largest items as the limits admit, of a modality
    that the corpus lacks vLLM's own largest. Items of an encoder-decoder model are no part of its
    context; None where it does not chat.
    """
    alone: list[PromptTokens] = []
    if not encoder_decoder:
        if not prompts.prompts():
            return fit([_fullest(table, counts, budget)], reserve_tokens, max_model_len)
        # Files that no request mentions are served too, at least each on its own.
        served = [table.heaviest(m) for m, c in counts.items() if c.value]
        alone = [PromptTokens(c.exemplar, c.count, c.tokens) for c in served if c]
    admitted = {m: count.value for m, count in counts.items()}
    if encoder_decoder and not texts.bounded:
        return None

    def covered() -> Iterator[tuple[PromptCount, PromptTokens]]:
        """Anew each time: a list of a million would be larger than their census."""
        for entry in prompts.signatures():
            if entry.signature.within(admitted):
                items = item_tokens(entry.signature.shapes, table.costs.tokens)
                if items is not None:
                    yield entry, _prompt(entry, 0 if encoder_decoder else items, texts)

    # The longest may settle that none of the others sets the context; a file is not read again for
    # a few each time.
    for step in _STEPS:
        every = (prompt for _, prompt in covered())
        places = unsettled(every, reserve_tokens, max_model_len, step)
        if not places:
            break
        wanted = set(places)
        entries = {n: entry for n, (entry, _) in enumerate(covered()) if n in wanted}
        texts.count([entries[place] for place in places], prompts.signatures())
    return fit(chain((prompt for _, prompt in covered()), alone), reserve_tokens, max_model_len)


def _prompt(entry: PromptCount, items: int, texts: Texts) -> PromptTokens:
    asked, text = entry.signature.asked, texts.tokens(entry)
    answer = asked.answer_tokens, asked.least_answer_tokens
    return PromptTokens(entry.exemplar.origin, entry.count, items, text, *answer)


def smallest_context(longest: Fit | None, most_tokens: int) -> int:
    """The smallest max_model_len that holds the longest prompt and its answer, in whole KV blocks
    and at most `most_tokens`, which it is where not all are known.
    """
    if longest is None or longest.unknown:
        return most_tokens
    blocks = -(-longest.needed_tokens // BLOCK_TOKENS)
    return min(blocks * BLOCK_TOKENS, most_tokens)


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
