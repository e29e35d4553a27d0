"""Requests of a corpus as traffic."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import zip_longest

import pytest

from mmcalib.census.accesses import Accesses
from mmcalib.census.prompts import PromptCensus, PromptCount, PromptSignature
from mmcalib.corpus.chat import ChatRequest, Prompt, Text
from mmcalib.domain.items import RequestText
from mmcalib.domain.shapes import ImageShape
from mmcalib.domain.traffic import SplitPrompt
from mmcalib.errors import UsageError
from mmcalib.workflows.corpus import LoadedCorpus
from mmcalib.workflows.traffic.requests import TEXT_TOKENS, make_trace
from tests.workflows.corpora import corpus

SMALL, LARGE = ImageShape(8, 8), ImageShape(800, 800)


def split(requests: Sequence[ChatRequest]) -> list[SplitPrompt | None]:
    """A token for each word, which its letters tell from others."""
    return [(tuple(map(hash, one.text().split())),) for one in requests]


def asking(found: LoadedCorpus, *texts: str, sent: Sequence[float | None] = ()) -> LoadedCorpus:
    """The corpus with these texts of its requests, in order, and when they were sent."""
    every = [
        Text(ChatRequest.of_user(text), f"r.jsonl:{number}", at_s)
        for number, (text, at_s) in enumerate(zip_longest(texts, sent), start=1)
    ]

    def again(origins: Container[str] | None = None) -> list[Text]:
        return [text for text in every if origins is None or text.origin in origins]

    return replace(found, texts=again)


def test_equal_texts_are_one_and_are_counted_once() -> None:
    counted: list[ChatRequest] = []

    def counting(requests: Sequence[ChatRequest]) -> list[SplitPrompt | None]:
        counted.extend(requests)
        return split(requests)

    given = asking(corpus([], [[SMALL], [SMALL, LARGE], [LARGE]]), "a b", "a b c", "a b")
    found = make_trace(given, counting)
    assert [request.text_tokens for request in found.requests] == [2, 3, 2]
    assert [len(request.items) for request in found.requests] == [1, 2, 1]
    first, second, third = found.requests
    assert first.prompt == third.prompt != second.prompt
    assert first.items[0].content == second.items[0].content
    assert len(counted) == 2


def test_what_requests_do_not_say_is_assumed() -> None:
    given = asking(corpus([], [[SMALL]]), "a b")
    found = make_trace(given, lambda requests: [None] * len(requests))
    assert found.requests[0].text_tokens == TEXT_TOKENS
    assert found.requests[0].answer_tokens == 1024
    assert found.assumptions == (
        "answers of 1,024 tokens to 1 request",
        f"{TEXT_TOKENS} tokens of text in 1 request",
    )


def test_requests_that_are_counted_alone_come_by_chance() -> None:
    given = corpus([], [[SMALL], [SMALL, LARGE], [SMALL], [SMALL]])
    found = make_trace(replace(given, accesses=Accesses()), split)
    assert sorted(len(request.items) for request in found.requests) == [1, 1, 1, 2]
    assert len({item.content for request in found.requests for item in request.items}) == 5
    assert found.assumptions == (
        "random order, no repeated items: a census keeps neither",
        "answers of 1,024 tokens to 4 requests",
    )


def test_a_sample_keeps_the_heaviest_and_the_order() -> None:
    requests = [[SMALL]] * 50 + [[LARGE]] + [[SMALL, SMALL]] * 49
    given = asking(corpus([], requests), *(f"text {number}" for number in range(100)))
    found = make_trace(given, split, most=10)
    assert len(found.requests) == 10
    assert any(item.shape == LARGE for request in found.requests for item in request.items)
    numbers = [int(request.origin.partition(":")[2]) for request in found.requests]
    assert numbers == sorted(numbers)
    assert found.assumptions[0].startswith("10 of 100 requests")
    assert make_trace(given, split, most=10) == found
    assert make_trace(given, split, most=10, seed=1) != found


def test_timed_requests_come_in_the_order_of_their_timestamps() -> None:
    given = asking(corpus([], [[SMALL], [LARGE], [SMALL]]), "a", "b", "c", sent=[105.0, 100.0, 101])
    found = make_trace(given, split, timed=True)
    assert [request.origin for request in found.requests] == ["r.jsonl:2", "r.jsonl:3", "r.jsonl:1"]
    assert [request.sent_s for request in found.requests] == [0.0, 1.0, 5.0]


def test_of_many_timed_requests_the_busiest_time_is_served() -> None:
    sent = [float(number) for number in range(50)]
    sent[20:24] = [20.0, 20.1, 20.2, 20.3]
    texts = (f"text {number}" for number in range(50))
    given = asking(corpus([], [[SMALL]] * 50), *texts, sent=sent)
    found = make_trace(given, split, most=4, timed=True)
    assert [request.origin for request in found.requests] == [f"r.jsonl:{n}" for n in range(21, 25)]
    assert found.requests[0].sent_s == 0.0
    assert "4 of 50 requests: the densest run of consecutive ones" in found.assumptions


def test_a_request_that_does_not_say_when_is_named() -> None:
    given = asking(corpus([], [[SMALL], [SMALL]]), "a", "b", sent=[1.0, None])
    with pytest.raises(UsageError, match=r"r\.jsonl:2 needs a .timestamp"):
        make_trace(given, split, timed=True)
    with pytest.raises(UsageError, match="--timestamps needs --requests"):
        make_trace(corpus([SMALL]), split, timed=True)


def test_without_requests_each_item_is_asked_about() -> None:
    found = make_trace(corpus([SMALL, SMALL, LARGE]), split)
    shapes = Counter(request.items[0].shape for request in found.requests)
    assert shapes == {SMALL: 2, LARGE: 1}
    # Files of one size are not one file.
    assert len({request.items[0].content for request in found.requests}) == 3
    assert "one item per request, in random order" in found.assumptions


def test_texts_that_are_gone_are_told_by_their_bytes() -> None:
    asked = RequestText(text_bytes=400, answer_tokens=7)
    whole = Prompt("r.jsonl:1", (), ChatRequest.of_user("a b c"))
    prompts = PromptCensus(
        PromptCount(PromptSignature((SMALL,), text_chars, asked), 2, exemplar)
        for text_chars, exemplar in ((3, whole), (400, Prompt("r.jsonl:2")))
    )
    given = replace(corpus([SMALL]), prompts=prompts)
    found = make_trace(given, split)
    assert sorted(request.text_tokens for request in found.requests) == [3, 3, 100, 100]
    assert {request.answer_tokens for request in found.requests} == {7}
    assert found.assumptions[1:] == ("one token per 4 bytes of text in 2 requests",)
    assert [len(make_trace(given, split, most=most).requests) for most in (1, 3)] == [1, 3]
