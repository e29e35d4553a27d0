"""The requests of a corpus as traffic: their items, what their text takes and what they ask for."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Final, TypeVar

import numpy as np

from mmcalib.census.accesses import Access, Accesses
from mmcalib.census.census import Census
from mmcalib.corpus.asking import digest
from mmcalib.domain.shape_columns import Column
from mmcalib.domain.shapes import weight
from mmcalib.domain.traffic import TrafficItem, TrafficRequest
from mmcalib.engine.messages import BareRequest
from mmcalib.errors import UsageError
from mmcalib.wording import number
from mmcalib.workflows.read import ReadCorpus

T = TypeVar("T")

# What vLLM's renderer counts, None where it refuses a request.
CountText = Callable[[Sequence[BareRequest]], Sequence[int | None]]

# What stands for an answer of which nothing is said, and for the text around an item that no
# request names. Choices, not measurements.
ANSWER_TOKENS: Final = 256
TEXT_TOKENS: Final = 64
# Of more requests a sample is served: the heaviest, and a mixture of the others.
MOST_REQUESTS: Final = 1000
_HEAVIEST: Final = 0.1
_MIXTURE: Final = f"the heaviest {_HEAVIEST:.0%}, and others by chance"
_BUSIEST: Final = "those in a row that come in the shortest time"


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in their order, of as many as there are; `assumptions` are what they do not say,
    `unsaid` how many do not say how long their answers may be.
    """

    requests: tuple[TrafficRequest, ...]
    of: int
    assumptions: tuple[str, ...]
    unsaid: int = 0


def trace(
    corpus: ReadCorpus,
    count: CountText,
    *,
    answer_tokens: int = ANSWER_TOKENS,
    most: int = MOST_REQUESTS,
    seed: int = 0,
    timed: bool = False,
) -> Trace:
    """The requests of a corpus; where it has none, each of its items in one of its own. With
    `timed` each is sent as its line says; UsageError where one does not say.
    """
    every = list(corpus.accesses.first())
    sent = _sent(corpus, every) if timed else {}
    if not every:
        return _alone(corpus, answer_tokens, most, seed)
    if timed:
        every.sort(key=lambda access: sent[access.origin])
        chosen = _busiest(every, sent, most)
    else:
        chosen = _sample(every, [_weight(access, corpus.accesses) for access in every], most, seed)
    start_s = min(sent[access.origin] for access in chosen) if timed else 0.0
    texts = _texts(corpus, {access.origin for access in chosen}, count)
    requests = []
    for access in chosen:
        text, tokens = texts.get(access.origin, ("", TEXT_TOKENS))
        asked = access.answer_tokens
        requests.append(
            TrafficRequest(
                access.origin,
                tokens,
                answer_tokens if asked is None else asked,
                tuple(_item(corpus.accesses, index) for index in access.items),
                text,
                sent_s=sent.get(access.origin, start_s) - start_s,
            )
        )
    which = _BUSIEST if timed else _MIXTURE
    said = list(_sampled(len(chosen), len(corpus.accesses.ends), "requests", which))
    unsaid = sum(access.answer_tokens is None for access in chosen)
    if unsaid:
        said.append(f"answers of {number(answer_tokens)} tokens to {number(unsaid)} requests")
    if missing := sum(access.origin not in texts for access in chosen):
        said.append(f"{TEXT_TOKENS} tokens of text in {number(missing)} requests")
    return Trace(tuple(requests), len(corpus.accesses.ends), tuple(said), unsaid)


def _alone(corpus: ReadCorpus, answer_tokens: int, most: int, seed: int) -> Trace:
    items = corpus.census.items()
    chosen = list(_items(corpus.census, most, seed))
    # A folder's order says nothing of that in which its files are asked about.
    random.Random(seed).shuffle(chosen)  # noqa: S311
    requests = tuple(
        TrafficRequest(item.content, TEXT_TOKENS, answer_tokens, (item,)) for item in chosen
    )
    said = (
        "each item in a request of its own, in an order by chance",
        f"{TEXT_TOKENS} tokens of text and answers of {number(answer_tokens)} tokens",
    )
    sampled = _sampled(len(chosen), items, "items", _MIXTURE)
    return Trace(requests, items, (*sampled, *said), len(requests))


def _items(census: Census, most: int, seed: int) -> Iterator[TrafficItem]:
    """At most so many, of one shape one after the other: the heaviest, and others by chance."""
    every = [census.counts(modality) for modality in census.modalities()]
    ends = np.cumsum(np.concatenate([one.counts for one in every]))
    weights = np.concatenate([one.shapes.weights() for one in every])
    places: Collection[int] = range(ends[-1])
    if ends[-1] > most:
        heaviest = dict.fromkeys(islice(_heaviest(ends, weights), round(most * _HEAVIEST)))
        some = random.Random(seed).sample(range(ends[-1]), most)  # noqa: S311
        others = [place for place in some if place not in heaviest]
        places = sorted([*heaviest, *others[: most - len(heaviest)]])
    firsts = list(accumulate((len(one) for one in every), initial=0))
    for place in places:
        row = int(ends.searchsorted(place, side="right"))
        part = bisect_right(firsts, row) - 1
        entry = every[part][row - firsts[part]]
        copy = place - int(ends[row]) + entry.count
        path = entry.exemplars[0]
        yield TrafficItem(entry.shape, f"{path}#{copy}" if copy else path)


def _heaviest(ends: Column, weights: Column) -> Iterator[int]:
    """Places of items, those of the heaviest row first."""
    for row in np.argsort(-weights, kind="stable"):
        yield from range(ends[row - 1] if row else 0, ends[row])


def _sampled(served: int, of: int, what: str, which: str) -> Iterator[str]:
    if served < of:
        yield f"{number(served)} of {number(of)} {what}: {which}"


def _sent(corpus: ReadCorpus, every: Sequence[Access]) -> dict[str, float]:
    """By origin when each was sent."""
    hint = "--rate R sends so many a second"
    if not every or corpus.texts is None:
        raise UsageError("--timestamps are of --requests", hint=hint)
    wanted = {access.origin for access in every}
    sent = {text.origin: text.sent_s for text in corpus.texts(wanted)}
    found = {origin: at_s for origin, at_s in sent.items() if at_s is not None}
    without = next((access.origin for access in every if access.origin not in found), None)
    if without is not None:
        why = f'{without} has no "timestamp" of seconds or ISO 8601'
        raise UsageError(why, hint=hint)
    return found


def _busiest(every: Sequence[Access], sent: Mapping[str, float], most: int) -> list[Access]:
    """As many in a row as come in the shortest time: a sample of others would thin the load."""
    times = [sent[access.origin] for access in every]
    starts = range(max(1, len(every) - most + 1))
    start = min(starts, key=lambda first: times[min(first + most, len(times)) - 1] - times[first])
    return list(every[start : start + most])


def _sample(every: Sequence[T], weights: Sequence[float], most: int, seed: int) -> list[T]:
    """At most so many, in their order: the heaviest, and others by chance."""
    if len(every) <= most:
        return list(every)
    order = sorted(range(len(every)), key=lambda index: -weights[index])
    heaviest = round(most * _HEAVIEST)
    rest = random.Random(seed).sample(order[heaviest:], most - heaviest)  # noqa: S311
    return [every[index] for index in sorted([*order[:heaviest], *rest])]


def _weight(access: Access, accesses: Accesses) -> float:
    return sum(weight(accesses.items[index][0]) for index in access.items)


def _item(accesses: Accesses, index: int) -> TrafficItem:
    shape, path = accesses.items[index]
    return TrafficItem(shape, path)


def _texts(
    corpus: ReadCorpus, wanted: Collection[str], count: CountText
) -> dict[str, tuple[str, int]]:
    """By origin what makes a text one with others, and its tokens, each text counted once."""
    keys: dict[str, str] = {}
    asked: dict[str, BareRequest] = {}
    for text in corpus.texts(wanted) if corpus.texts else ():
        key = digest(text.messages, text.fields)
        keys[text.origin] = key
        asked.setdefault(key, BareRequest(text.messages, text.fields, dict(text.items)))
    tokens = dict(zip(asked, count(list(asked.values())), strict=True))
    found = ((origin, key, tokens[key]) for origin, key in keys.items())
    return {origin: (key, counted) for origin, key, counted in found if counted is not None}
