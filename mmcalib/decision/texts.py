"""Find the longest prompt of a corpus.

A request's text is bounded by its bytes; vLLM's renderer counts it if the bound does not decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.corpus.chat import ChatRequest, Text, url_part
from mmcalib.domain.items import RequestText, TextBound, TextCounting
from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.domain.traffic import SplitPrompt
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import (
    BoundTexts,
    CountingResult,
    CountTexts,
    FindCounting,
    FindGrammar,
    SplitTexts,
)
from mmcalib.errors import VllmMoved, VllmRefused
from mmcalib.gate.admission import ChatText
from mmcalib.gate.fit import (
    Fit,
    PromptTokens,
    TokenRange,
    bound_text,
    fit_prompts,
    prompts_to_count,
)
from mmcalib.limits.costs import CostTable, quantile
from mmcalib.limits.values import Count
from mmcalib.releases.constants import BLOCK_TOKENS

# Reads the requests of these origins, or all, again without their media.
ReadTexts = Callable[[Container[str] | None], Iterable[Text]]

# Requests counted at a time: the child can report between two batches.
BATCH = 64

# The fields in a census that determine a request's text tokens, and its items by modality.
_Key = tuple[RequestText, tuple[int, ...]]


@dataclass(slots=True)
class Texts:
    """Bounds and counts the texts of requests.

    `reread` reads the requests again; others are counted only if the census kept them whole.
    `measured` has counted tokens by digest. `counting` lets transformers count texts without vLLM;
    if it is None, `uncounted` is the reason. `grammar` is vLLM's schema of requests.
    """

    host: EngineHost
    bound: TextBound = field(default_factory=TextBound)
    reread: ReadTexts | None = None
    _counted: dict[_Key, int | None] = field(default_factory=dict)
    measured: dict[str, int] = field(default_factory=dict)
    counting: TextCounting | None = None
    uncounted: str = ""
    grammar: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, host: EngineHost, modalities: Collection[Modality], again: ReadTexts | None = None
    ) -> Texts:
        """Make it with the bound of the host's open model."""
        bound = TextBound()
        with suppress(VllmMoved, VllmRefused):
            bound = host.ask(BoundTexts(tuple(modalities)), "reading the chat template")
        return cls(host, bound, again)

    def find_counting(self, modalities: Collection[Modality]) -> None:
        """Find a way to count texts without vLLM."""
        try:
            answer = self.host.ask(FindCounting(tuple(modalities)), "counting texts without vLLM")
        except (VllmMoved, VllmRefused) as error:
            answer = CountingResult(None, error.message)
        self.counting, self.uncounted = answer.counting, answer.why

    def find_grammar(self, modalities: Collection[Modality]) -> None:
        """Read vLLM's schema of requests; it stays empty if vLLM gives none."""
        with suppress(VllmMoved, VllmRefused):
            request = FindGrammar(tuple(modalities))
            self.grammar = self.host.ask(request, "reading vLLM's request schema")

    def tokens(self, entry: PromptCount) -> TokenRange:
        """Return the tokens of the longest text among a signature's requests."""
        if (counted := self._counted.get(_key(entry))) is not None:
            return TokenRange.exactly(counted)
        items = Counter(shape.modality for shape in entry.signature.shapes)
        return bound_text(self.bound, entry.signature.asked, items)

    def count(self, entries: Iterable[PromptCount], among: Iterable[PromptCount]) -> None:
        """Count these entries of `among`, as far as their words can be read again."""
        unknown = (e for e in entries if e.signature.asked.is_countable)
        wanted = {_key(e): e for e in unknown if _key(e) not in self._counted}
        if not wanted:
            return
        self._counted |= dict.fromkeys(wanted)
        # Each request with the same key may have a different text.
        alike: Counter[_Key] = Counter()
        for entry in among:
            if (key := _key(entry)) in wanted:
                alike[key] += entry.count
        requests = ((key, entry.exemplar.request) for key, entry in wanted.items())
        whole = {
            key: one.strip_media()
            for key, one in requests
            if one.messages and (alike[key] == 1 or key[0].given)
        }
        self._count_texts(whole.items())
        if missing := wanted.keys() - whole.keys():
            self._count_texts(self._read(missing))

    def _read(self, wanted: set[_Key]) -> Iterator[tuple[_Key, ChatRequest]]:
        for text in self.reread(None) if self.reread else ():
            items = text.request.items()
            key = text.request.measure_context(), tuple(items[modality] for modality in MODALITIES)
            if key in wanted:
                yield key, text.request
                if key[0].given:  # All others have as many tokens.
                    wanted.remove(key)

    def measure(self, requests: Sequence[ChatRequest]) -> Iterator[RequestText]:
        """Yield each text, in tokens beyond its items' own; in bytes if vLLM rejects it."""
        media = ([url_part(kind, "") for kind, _ in one.media()] for one in requests)
        both = (*map(ChatRequest.of_user, media), *requests)
        asks = CountTexts(tuple(one.strip_media() for one in both))
        counted = self.host.ask(asks, "counting the text of requests")
        for request, items, tokens in zip(
            requests, counted, counted[len(requests) :], strict=False
        ):
            asked = request.measure_context()
            if not (asked.given or isinstance(tokens, str) or isinstance(items, str)):
                bare = replace(asked, messages=1, text_bytes=0, tool_bytes=0, plain=True)
                asked = replace(bare, text_tokens=max(0, tokens - items))
            yield asked

    def split(self, requests: Sequence[ChatRequest]) -> list[SplitPrompt | None]:
        """Return the prompt of each request, None if vLLM rejects it."""
        prompts, remaining = list[SplitPrompt | None](), iter(requests)
        while group := tuple(islice(remaining, BATCH)):
            prompts += self.host.ask(SplitTexts(group), "rendering requests")
        return prompts

    def chat(self, prompts: PromptCensus, modality: Modality, reserve_tokens: int) -> ChatText:
        """Count a chat whose turns repeat the median request of one item and one message; without
        such a request, the reserve is assumed for each turn.
        """

        def single() -> Iterator[PromptCount]:
            for entry in prompts.signatures():
                if len(entry.signature.shapes) == 1 == entry.signature.items(modality):
                    yield entry

        sizes = Counter[int]()
        for entry in single():
            sizes[entry.signature.asked.text_bytes] += entry.count
        median = quantile([*sizes], [*sizes.values()], 0.5)
        whole = [e for e in single() if _asks_once(e.exemplar.request)]
        if not whole:
            return ChatText.of_reserve(reserve_tokens)
        typical = min(whole, key=lambda e: abs(e.signature.asked.text_bytes - median))
        # vLLM changes messages, so none is shared.
        first, again = (typical.exemplar.request.strip_media() for _ in range(2))
        last = typical.exemplar.request.strip_media().messages[-1]
        answered = [*again.messages, {"role": "assistant", "content": "a"}, last]
        texts = CountTexts((first, ChatRequest(answered, first.fields)))
        one, two = self.host.ask(texts, "counting the text of a chat")
        if isinstance(one, str) or isinstance(two, str):
            return ChatText.of_reserve(reserve_tokens)
        # The answer stands for the "a", which is one token.
        asked = typical.signature.asked.answer_tokens
        answer = (reserve_tokens if asked is None else asked) - 1
        return ChatText(one, two - one + answer, typical.exemplar.origin, asked is None)

    def _count_texts(self, requests: Iterable[tuple[_Key, ChatRequest]]) -> None:
        remaining = iter(requests)
        while group := list(islice(remaining, BATCH)):
            texts = CountTexts(tuple(request for _, request in group))
            counted = self.host.ask(texts, "counting the text of requests")
            for (key, request), tokens in zip(group, counted, strict=True):
                if not isinstance(tokens, str):
                    least = self._counted.get(key) or key[0].text_tokens
                    self._counted[key] = max(tokens, least)
                    self.measured[request.digest()] = tokens


def _asks_once(request: ChatRequest) -> bool:
    roles = [message.get("role") for message in request.messages]
    return [role for role in roles if role != "system"] == ["user"] == roles[-1:]


def _key(entry: PromptCount) -> _Key:
    return entry.signature.asked, tuple(entry.signature.items(m) for m in MODALITIES)


# Numbers of the longest texts to count before each new comparison; at last all.
_STEPS = (64, 1024, None)


def longest_prompt(
    prompts: PromptCensus,
    table: CostTable,
    counts: Mapping[Modality, Count],
    budget: Budget,
    reserve_tokens: int,
    texts: Texts,
    *,
    encoder_decoder: bool,
) -> Fit | None:
    """Return the covered prompt that needs the longest context; without requests, one with the most
    largest items admitted (vLLM's own if unseen). An encoder-decoder's context holds no items.
    """
    single: list[PromptTokens] = []
    max_model_len = budget.max_model_len
    if not encoder_decoder:
        if not prompts.prompts():
            return fit_prompts([_fullest(table, counts, budget)], reserve_tokens, max_model_len)
        # Files that no request mentions are served too, one per prompt.
        served = [table.heaviest(m) for m, c in counts.items() if c.value]
        single = [PromptTokens(c.exemplar, c.count, c.tokens) for c in served if c]
    admitted = {m: count.value for m, count in counts.items()}
    if encoder_decoder and not texts.bound.compared:
        return None

    def covered() -> Iterator[tuple[PromptCount, PromptTokens]]:
        """Yield covered entries; not a list, which would be larger than the census."""
        for entry in prompts.signatures():
            if entry.signature.fits(admitted):
                every = [table.costs.tokens(shape) for shape in entry.signature.shapes]
                known = [tokens for tokens in every if tokens is not None]
                # Otherwise vLLM rejects an item, or the model does not take its modality.
                if len(known) == len(every):
                    items = 0 if encoder_decoder else sum(known)
                    yield entry, _prompt_of_entry(entry, items, texts)

    # Counting the longest often decides, so start with few, but read the file few times.
    for step in _STEPS:
        every = (prompt for _, prompt in covered())
        places = prompts_to_count(every, reserve_tokens, max_model_len, step)
        if not places:
            break
        chosen = set(places)
        entries = {n: entry for n, (entry, _) in enumerate(covered()) if n in chosen}
        texts.count([entries[place] for place in places], prompts.signatures())
    served_prompts = chain((prompt for _, prompt in covered()), single)
    return fit_prompts(served_prompts, reserve_tokens, max_model_len)


def _prompt_of_entry(entry: PromptCount, items: int, texts: Texts) -> PromptTokens:
    asked, text = entry.signature.asked, texts.tokens(entry)
    answer = asked.answer_tokens, asked.least_answer_tokens
    return PromptTokens(entry.exemplar.origin, entry.count, items, text, *answer)


def smallest_context(longest: Fit | None, most_tokens: int) -> int:
    """Return the smallest max_model_len, in whole KV blocks, for the longest prompt and answer."""
    if longest is None or longest.unknown:
        return most_tokens
    return min(-(-longest.needed_tokens // BLOCK_TOKENS) * BLOCK_TOKENS, most_tokens)


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
