"""The requests of a corpus as traffic: their items, what their text takes and what they ask for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from mmcalib.census.accesses import Access, Accesses
from mmcalib.corpus.asking import digest
from mmcalib.domain.shapes import weight
from mmcalib.domain.traffic import ANSWER_TOKENS, Trace, TrafficItem, TrafficRequest
from mmcalib.engine.messages import BareRequest
from mmcalib.errors import UsageError
from mmcalib.wording import number, several
from mmcalib.workflows.read import ReadCorpus
from mmcalib.workflows.traffic.sampling import (
    MIXTURE,
    MOST_REQUESTS,
    said_of_sample,
    sample,
)
from mmcalib.workflows.traffic.unordered import TEXT_TOKENS, CountText, by_chance, each_alone

_BUSIEST: Final = "those in a row that come in the shortest time"


def trace(
    corpus: ReadCorpus,
    count: CountText,
    *,
    answer_tokens: int = ANSWER_TOKENS,
    most: int = MOST_REQUESTS,
    seed: int = 0,
    timed: bool = False,
) -> Trace:
    """The requests of a corpus, in an order by chance where it keeps none; where it has no
    requests, each of its items in one of its own. With `timed` each is sent as its line says;
    UsageError where one does not say.
    """
    every = list(corpus.accesses.first())
    sent = _sent(corpus, every) if timed else {}
    if not every:
        if corpus.prompts.prompts():
            return by_chance(corpus.prompts, count, answer_tokens, most, seed)
        return each_alone(corpus.census, answer_tokens, most, seed)
    if timed:
        every.sort(key=lambda access: sent[access.origin])
        chosen = _busiest(every, sent, most)
    else:
        weights = [_weight(access, corpus.accesses) for access in every]
        chosen = sample(every, weights, most, seed)
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
    which = _BUSIEST if timed else MIXTURE
    said = list(said_of_sample(len(chosen), len(corpus.accesses.ends), "requests", which))
    unsaid = sum(access.answer_tokens is None for access in chosen)
    if unsaid:
        said.append(f"answers of {number(answer_tokens)} tokens to {several(unsaid, 'request')}")
    if missing := sum(access.origin not in texts for access in chosen):
        said.append(f"{TEXT_TOKENS} tokens of text in {several(missing, 'request')}")
    return Trace(tuple(requests), len(corpus.accesses.ends), tuple(said), unsaid)


def _sent(corpus: ReadCorpus, every: Sequence[Access]) -> dict[str, float]:
    """By origin when each was sent."""
    hint = "--rate R sends so many a second"
    if not every or corpus.texts is None:
        raise UsageError("--timestamps needs --requests", hint=hint)
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
