"""Traffic of a corpus that has no requests, or keeps no order of them."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.census.signature import PromptSignature
from mmcalib.corpus.asking import bare
from mmcalib.domain.shapes import MODALITIES, weight
from mmcalib.domain.traffic import Trace, TrafficItem, TrafficRequest
from mmcalib.engine.messages import BareRequest
from mmcalib.wording import number, several
from mmcalib.workflows.traffic.sampling import said_of_sample, sampled_rows

# What vLLM's renderer counts, None where it refuses a request.
CountText = Callable[[Sequence[BareRequest]], Sequence[int | None]]

# What stands for the text around an item that no request names, and the bytes that stand for a
# token of text which is not there to be counted. Choices, not measurements.
TEXT_TOKENS: Final = 64
_TOKEN_BYTES: Final = 4


def each_alone(census: Census, answer_tokens: int, most: int, seed: int) -> Trace:
    """Each item in a request of its own."""
    chosen = list(_items(census, most, seed))
    # A folder's order says nothing of that in which its files are asked about.
    random.Random(seed).shuffle(chosen)  # noqa: S311
    requests = tuple(
        TrafficRequest(item.content, TEXT_TOKENS, answer_tokens, (item,)) for item in chosen
    )
    said = (
        "each item in a request of its own, in an order by chance",
        f"{TEXT_TOKENS} tokens of text and answers of {number(answer_tokens)} tokens",
    )
    sampled = said_of_sample(len(chosen), census.items(), "items")
    return Trace(requests, census.items(), (*sampled, *said), len(requests))


def by_chance(
    prompts: PromptCensus, count: CountText, answer_tokens: int, most: int, seed: int
) -> Trace:
    """Requests that are known by how many there are of each kind."""
    every = list(map(_row, prompts.signatures()))
    times = np.array([times for times, _ in every])
    weights = np.array([weight for _, weight in every])
    chosen = Counter(row for row, _ in sampled_rows(times, weights, most, seed))
    taken = [(entry, chosen[row]) for row, entry in enumerate(prompts.signatures()) if chosen[row]]
    texts = _texts([entry for entry, _ in taken], count)
    requests = [
        request
        for entry, many in taken
        for request in _alike(entry, many, texts.get(entry.signature), answer_tokens)
    ]
    random.Random(seed).shuffle(requests)  # noqa: S311
    said = [
        *said_of_sample(len(requests), prompts.prompts(), "requests"),
        "requests in an order by chance, no item twice: a census keeps neither",
    ]
    unsaid = sum(m for entry, m in taken if entry.signature.asked.answer_tokens is None)
    if unsaid:
        said.append(f"answers of {number(answer_tokens)} tokens to {several(unsaid, 'request')}")
    if without := sum(many for entry, many in taken if entry.signature not in texts):
        said.append(f"a token for {_TOKEN_BYTES} bytes of text in {several(without, 'request')}")
    return Trace(tuple(requests), prompts.prompts(), tuple(said), unsaid)


def _items(census: Census, most: int, seed: int) -> Iterator[TrafficItem]:
    """At most so many, of one shape one after the other."""
    every = [census.counts(modality) for modality in census.modalities()]
    firsts = list(accumulate((len(one) for one in every), initial=0))
    counts = np.concatenate([one.counts for one in every])
    weights = np.concatenate([one.shapes.weights() for one in every])
    for row, copy in sampled_rows(counts, weights, most, seed):
        part = bisect_right(firsts, row) - 1
        entry = every[part][row - firsts[part]]
        path = entry.exemplars[0]
        yield TrafficItem(entry.shape, f"{path}#{copy}" if copy else path)


def _row(entry: PromptCount) -> tuple[int, float]:
    return entry.count, sum(map(weight, entry.signature.shapes))


def _texts(entries: Iterable[PromptCount], count: CountText) -> dict[PromptSignature, int]:
    """The tokens of those that are there to be counted, and that vLLM takes."""
    whole = [entry for entry in entries if entry.exemplar.messages]
    counted = count([_bare(entry) for entry in whole]) if whole else ()
    pairs = zip(whole, counted, strict=True)
    return {entry.signature: tokens for entry, tokens in pairs if tokens is not None}


def _bare(entry: PromptCount) -> BareRequest:
    kept, carried = entry.exemplar, entry.signature.items
    return BareRequest(bare(kept.messages), dict(kept.fields), {m: carried(m) for m in MODALITIES})


def _alike(
    entry: PromptCount, many: int, text_tokens: int | None, answer_tokens: int
) -> Iterator[TrafficRequest]:
    asked, origin = entry.signature.asked, entry.exemplar.origin
    for copy in range(many):
        yield TrafficRequest(
            f"{origin}#{copy}" if copy else origin,
            asked.text_bytes // _TOKEN_BYTES if text_tokens is None else text_tokens,
            answer_tokens if asked.answer_tokens is None else asked.answer_tokens,
            tuple(
                TrafficItem(shape, f"{origin}#{copy}/{place}")
                for place, shape in enumerate(entry.signature.shapes)
            ),
        )
