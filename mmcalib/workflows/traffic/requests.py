"""Turn a corpus into traffic."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Final

import numpy as np

from mmcalib.census.accesses import Access
from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.corpus.chat import ChatRequest
from mmcalib.domain.shape_columns import Column
from mmcalib.domain.shapes import weight
from mmcalib.domain.traffic import SplitPrompt, Trace, TrafficItem, TrafficRequest
from mmcalib.errors import UsageError
from mmcalib.limits.policy import TEXT_RESERVE_TOKENS
from mmcalib.text import number, plural
from mmcalib.workflows.corpus import LoadedCorpus

# mmcalib serves a sample of a larger corpus.
MOST_REQUESTS: Final = 1000
_HEAVIEST: Final = 0.1
MIXTURE: Final = f"the heaviest {_HEAVIEST:.0%} and a random sample of the others"


def sample_rows(counts: Column, weights: Column, most: int, seed: int) -> Iterator[tuple[int, int]]:
    """Sample at most `most` items, `counts` in each row, in their order: those of the heaviest
    rows and a random sample of the others. Yield the row and the index of the item in it.
    """
    ends = np.cumsum(counts)
    total = int(ends[-1])
    places: Sequence[int] = range(total)
    if total > most:
        # Item indices, those of the heaviest row first.
        rows = np.argsort(-weights, kind="stable")
        by_weight = chain.from_iterable(range(ends[r] - counts[r], ends[r]) for r in rows)
        heaviest = dict.fromkeys(islice(by_weight, round(most * _HEAVIEST)))
        some = random.Random(seed).sample(places, most)  # noqa: S311
        others = [place for place in some if place not in heaviest]
        places = sorted([*heaviest, *others[: most - len(heaviest)]])
    for place in places:
        row = int(ends.searchsorted(place, side="right"))
        yield row, place - int(ends[row] - counts[row])


def describe_sample(served: int, of: int, what: str, which: str = MIXTURE) -> Iterator[str]:
    """Describe the sample, if it is one."""
    if served < of:
        yield f"{number(served)} of {number(of)} {what}: {which}"


# Makes each request's prompt with vLLM's renderer; None if the renderer rejects the request.
Split = Callable[[Sequence[ChatRequest]], Sequence[SplitPrompt | None]]

# Assumed text tokens around an item that no request names, and bytes per token of uncounted text.
TEXT_TOKENS: Final = 64
_TOKEN_BYTES: Final = 4


def single_item_traffic(census: Census, answer_tokens: int, most: int, seed: int) -> Trace:
    """Make a request for each item."""
    chosen = list(_items(census, most, seed))
    # The order of files in a folder does not predict the order of requests.
    random.Random(seed).shuffle(chosen)  # noqa: S311
    requests = tuple(
        TrafficRequest(item.content, TEXT_TOKENS, answer_tokens, (item,)) for item in chosen
    )
    assumptions = (
        *describe_sample(len(chosen), census.items(), "items"),
        "one item per request, in random order",
        f"{TEXT_TOKENS} tokens of text and answers of {number(answer_tokens)} tokens",
    )
    return Trace(requests, assumptions, len(requests), answer_tokens)


def random_traffic(
    prompts: PromptCensus, split: Split, answer_tokens: int, most: int, seed: int
) -> Trace:
    """Make requests in random order from the number of requests of each kind."""
    every = [(e.count, sum(map(weight, e.signature.shapes))) for e in prompts.signatures()]
    times, weights = (np.array(column) for column in zip(*every, strict=True))
    chosen = Counter(row for row, _ in sample_rows(times, weights, most, seed))
    kinds = [(entry, chosen[row]) for row, entry in enumerate(prompts.signatures()) if chosen[row]]
    # Only requests whose messages the census kept can be rendered.
    whole = [entry for entry, _ in kinds if entry.exemplar.request.messages]
    split_up = split([entry.exemplar.request.strip_media() for entry in whole]) if whole else ()
    pairs = zip(whole, split_up, strict=True)
    texts = {entry.signature: _tokens(prompt) for entry, prompt in pairs if prompt is not None}
    requests = [
        request
        for entry, many in kinds
        for request in _copies(entry, many, texts.get(entry.signature), answer_tokens)
    ]
    random.Random(seed).shuffle(requests)  # noqa: S311
    assumptions = [
        *describe_sample(len(requests), prompts.prompts(), "requests"),
        "random order, no repeated items: a census keeps neither",
    ]
    unsaid = sum(m for entry, m in kinds if entry.signature.asked.answer_tokens is None)
    if unsaid:
        few = plural(unsaid, "request")
        assumptions.append(f"answers of {number(answer_tokens)} tokens to {few}")
    if uncounted := sum(many for entry, many in kinds if entry.signature not in texts):
        few = plural(uncounted, "request")
        assumptions.append(f"one token per {_TOKEN_BYTES} bytes of text in {few}")
    return Trace(tuple(requests), tuple(assumptions), unsaid, answer_tokens)


def _items(census: Census, most: int, seed: int) -> Iterator[TrafficItem]:
    """Yield at most `most` items, those of one shape in a row."""
    every = [census.counts(modality) for modality in census.modalities()]
    firsts = list(accumulate((len(one) for one in every), initial=0))
    counts = np.concatenate([one.counts for one in every])
    weights = np.concatenate([one.shapes.weights() for one in every])
    for row, copy in sample_rows(counts, weights, most, seed):
        part = bisect_right(firsts, row) - 1
        entry = every[part][row - firsts[part]]
        path = entry.exemplars[0]
        yield TrafficItem(entry.shape, f"{path}#{copy}" if copy else path)


def _tokens(prompt: SplitPrompt) -> int:
    return sum(len(part) for part in prompt if not isinstance(part, str))


def _copies(
    entry: PromptCount, many: int, text_tokens: int | None, answer_tokens: int
) -> Iterator[TrafficRequest]:
    request, origin = entry.signature.asked, entry.exemplar.origin
    for copy in range(many):
        yield TrafficRequest(
            f"{origin}#{copy}" if copy else origin,
            request.text_bytes // _TOKEN_BYTES if text_tokens is None else text_tokens,
            answer_tokens if request.answer_tokens is None else request.answer_tokens,
            tuple(
                TrafficItem(shape, f"{origin}#{copy}/{place}")
                for place, shape in enumerate(entry.signature.shapes)
            ),
        )


def make_trace(
    corpus: LoadedCorpus,
    split: Split,
    *,
    answer_tokens: int = TEXT_RESERVE_TOKENS,
    most: int = MOST_REQUESTS,
    seed: int = 0,
    timed: bool = False,
) -> Trace:
    """Return the corpus' requests (random order if it keeps none); without any, one per item.
    With `timed`, each is sent at its own timestamp; raises UsageError if one is missing.
    """
    every, items = list(corpus.accesses.known_origins()), corpus.accesses.items
    sent = _timestamps(corpus, every) if timed else {}
    if not every:
        if corpus.prompts.prompts():
            return random_traffic(corpus.prompts, split, answer_tokens, most, seed)
        return single_item_traffic(corpus.census, answer_tokens, most, seed)
    if timed:
        every.sort(key=lambda access: sent[access.origin])
        # The densest run of consecutive requests: a random sample would thin the load.
        times = [sent[access.origin] for access in every]
        starts = range(max(1, len(every) - most + 1))
        start = min(starts, key=lambda n: times[min(n + most, len(times)) - 1] - times[n])
        chosen = every[start : start + most]
    else:
        weights = [sum(weight(items[index][0]) for index in access.items) for access in every]
        rows = sample_rows(np.ones(len(every), int), np.asarray(weights), most, seed)
        chosen = [every[row] for row, _ in rows]
    start_s = min(sent[access.origin] for access in chosen) if timed else 0.0
    prompts = _prompts(corpus, {access.origin for access in chosen}, split)
    requests = []
    for access in chosen:
        prompt = prompts.get(access.origin, ())
        wanted_tokens = access.answer_tokens
        requests.append(
            TrafficRequest(
                access.origin,
                _tokens(prompt) if prompt else TEXT_TOKENS,
                answer_tokens if wanted_tokens is None else wanted_tokens,
                tuple(TrafficItem(*items[index]) for index in access.items),
                prompt,
                sent_s=sent.get(access.origin, start_s) - start_s,
            )
        )
    which = "the densest run of consecutive ones" if timed else MIXTURE
    notes = list(describe_sample(len(chosen), len(corpus.accesses.ends), "requests", which))
    unsaid = sum(access.answer_tokens is None for access in chosen)
    if unsaid:
        notes.append(f"answers of {number(answer_tokens)} tokens to {plural(unsaid, 'request')}")
    if missing := sum(access.origin not in prompts for access in chosen):
        notes.append(f"{TEXT_TOKENS} tokens of text in {plural(missing, 'request')}")
    return Trace(tuple(requests), tuple(notes), unsaid, answer_tokens)


def _timestamps(corpus: LoadedCorpus, every: Sequence[Access]) -> dict[str, float]:
    hint = "--rate R sends R requests a second"
    if not every or corpus.texts is None:
        raise UsageError("--timestamps needs --requests", hint=hint)
    origins = {access.origin for access in every}
    read = ((text.origin, text.sent_s) for text in corpus.texts(origins))
    sent = {origin: at_s for origin, at_s in read if at_s is not None}
    without = next((access.origin for access in every if access.origin not in sent), None)
    if without is not None:
        why = f'{without} needs a "timestamp" in seconds or ISO 8601, or a "session_id"'
        raise UsageError(why, hint=hint)
    return sent


def _prompts(
    corpus: LoadedCorpus, origins: Collection[str], split: Split
) -> dict[str, SplitPrompt]:
    """Return prompts by origin; each text is split once."""
    keys: dict[str, str] = {}
    requests: dict[str, ChatRequest] = {}
    for text in corpus.texts(origins) if corpus.texts else ():
        key = keys[text.origin] = text.request.digest()
        requests.setdefault(key, text.request)
    prompts = dict(zip(requests, split(list(requests.values())), strict=True))
    return {origin: prompt for origin, key in keys.items() if (prompt := prompts[key]) is not None}
