"""What cached encoder outputs may keep alive beyond what the cache counts, for this corpus."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import numpy as np

from mmcalib.census.accesses import Accesses
from mmcalib.checks.check import Check
from mmcalib.checks.facts import Configuration
from mmcalib.checks.reserve import CACHED_KEEP
from mmcalib.derive.demand import LanguageStep, Pinned, PromptsStep, pinned, repeated
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.wording import gib, number
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.memory.worst_steps import demands, output_width


def views_check(predicted: Predicted, decision: Configuration, accesses: Accesses) -> Check | None:
    """A note where it is reserved all the same, a warning where it may not be; None where items of
    a batch share nothing or go with their requests, or nothing was rehearsed.
    """
    after = predicted.calibrated
    outputs = after.outputs if after else None
    if after is None or outputs is None or outputs.shared is False or not outputs.outlive:
        return None
    found = retained(decision, accesses)
    every = demands(decision, after, predicted.steps)
    steps = (one for one in every if isinstance(one, LanguageStep | PromptsStep))
    language = max(steps, key=lambda one: one.nbytes, default=None)
    width = output_width(after, predicted.steps)
    if found is None or language is None or not width:
        return None
    counted, kept = found.cache_tokens * width, found.tokens * width
    said = "every item" if not found.known else "each item that requests name again"
    detail = (
        "an item in the encoder cache keeps the memory of the whole batch that it came with: at "
        f"most {gib(kept)} for this corpus where the cache counts {gib(counted)}, computed for "
        f"{number(found.batches)} batches, {said} staying while others come and go"
    )
    if not found.known:
        detail += " (assumed: no order of requests is given)"
    short = language.peak_bytes + kept - after.activation_peak_bytes
    if short <= VLLM_SLACK_BYTES:
        return Check(CACHED_KEEP, "pass", f"{detail}; the profile reserves that much")
    return Check(
        CACHED_KEEP,
        "warn",
        f"{detail}; with the language model's step that is {gib(short)} more than is reserved",
        "a lower gpu_memory_utilization leaves room without reserving it; a smaller "
        "max_num_batched_tokens makes batch and cache smaller",
    )


def retained(decision: Configuration, accesses: Accesses) -> Pinned | None:
    """The bound for the corpus' own items; None without any."""
    budget, table = decision.budget, decision.table
    cache, known = budget.encoder_cache_size, bool(accesses.ends) and accesses.complete
    batch = 0
    for modality in table.modalities():
        heaviest = table.heaviest(modality)
        if heaviest is not None and decision.counts[modality].value:
            at_once = budget.max_num_seqs * decision.counts[modality].value
            batch = max(batch, min(budget.encoder_budget_tokens, at_once * heaviest.embeds))
    if not cache or not batch:
        return None
    kept = _again(accesses, decision) if known else _any(decision, cache)
    return pinned(kept, cache, batch, known=known)


def _again(accesses: Accesses, decision: Configuration) -> Iterator[int]:
    for index in repeated(accesses.requests()):
        cost = decision.table.costs.get(accesses.items[index][0])
        if cost is not None and cost.embeds:
            yield cost.embeds


def _any(decision: Configuration, cache: int) -> Iterator[int]:
    """No more of a size than the cache holds."""
    for modality in decision.table.modalities():
        costs = decision.table.of(modality)
        embeds, rows = np.unique(costs.embeds[costs.embeds > 0], return_inverse=True)
        counts = np.bincount(rows, costs.counts[costs.embeds > 0])
        for size, count in zip(embeds.tolist(), counts.tolist(), strict=True):
            yield from repeat(size, min(int(count), cache // size + 1))
