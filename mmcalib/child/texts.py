"""Text tokens by vLLM; bound; recipe."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcalib.child.processor import load
from mmcalib.child.service import refusal_of
from mmcalib.child.text_counter import TextCounter, Uncounted
from mmcalib.corpus.chat import PART_OF, ChatRequest, Message, text_part, url_part
from mmcalib.domain.items import TextBound, TextCounting
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.domain.traffic import SplitPrompt
from mmcalib.engine.messages import (
    Blank,
    CountingFound,
    CountTexts,
    GrammarFound,
    SplitTexts,
    TextsCounted,
    TextsSplit,
)
from mmcalib.releases import grammar, processors

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel

# What templates treat in ways of their own: line breaks, tags of thoughts, quotes, other scripts.
_WORDS = (
    *("a", " a\n\n", "\n", "<b>\"'\\</b>", "</think>a<think>b", "word " * 40, "été", "字" * 9),
    *("\U0001f9d1\u200d\U0001f680", "\x00\x07", "{{ a }}", "\U0001d160" * 3, "किताब", '{"a": [1]}'),
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a <place>, \u00e9t\u00e9.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["place"],
        },
    },
}
_BARE: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
ITEMS = (1, 2, 3)


def _turn(role: str, words: str) -> Message:
    return {"role": role, "content": words}


ONE = ChatRequest.of_user("a")


def with_items(modality: Modality, count: int, words: str = "a") -> ChatRequest:
    """One message of so many items between words."""
    parts = [url_part(PART_OF[modality], "x") for _ in range(count)]
    last = text_part("b" if words == "a" else words)
    return ChatRequest.of_user([text_part(words), *parts, last]).bare()


def around_items(modality: Modality) -> Iterator[ChatRequest]:
    """One to three items, and words beside them with which what surrounds an item may merge."""
    for count in ITEMS:
        yield with_items(modality, count)
    for words in ("\n", "\n\n", " ", ""):
        yield with_items(modality, 1, words)


def conversations() -> Iterator[ChatRequest]:
    """Orders of turns, of which templates refuse some. vLLM changes messages: none is shared."""
    user, assistant = _turn("user", "a"), _turn("assistant", "b")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    called: list[Message] = [
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "tool", "tool_call_id": "1", "content": ""},
    ]
    for turns in (
        [user, assistant, user],
        [_turn("system", "s"), user],
        [_turn("system", "s"), user, assistant, user],
        [user, assistant] * 4 + [user],
        [user] * 4,
        [_turn("system", ""), *([_turn("user", ""), _turn("assistant", "")] * 3), user],
        [_turn("developer", "s"), user],
        [user, *called, user],
    ):
        yield ChatRequest(turns).bare()


def with_fields() -> Iterator[ChatRequest]:
    """Tools, and other fields that a template may read."""
    strict = {"type": "function", "function": {**_BARE["function"], "strict": True, "x": 1}}
    called = [turn for one in conversations() for turn in one.messages if len(turn) > 2]
    for tools in ([_TOOL], [_BARE, strict], [_TOOL] * 3):
        for messages in (ONE.messages, [*ONE.messages, *called, *ONE.messages]):
            yield ChatRequest(list(messages), {"tools": tools, "tool_choice": "none"})
    ended = [_turn("user", "a"), _turn("assistant", "b")]
    yield ChatRequest(ended, {"continue_final_message": True, "add_generation_prompt": False})
    others: Sequence[dict[str, Any]] = (
        *({"reasoning_effort": effort} for effort in ("none", "low", "high")),
        *({"chat_template_kwargs": {"enable_thinking": on, "x": "y"}} for on in (True, False)),
        {"add_generation_prompt": False},
        {"add_special_tokens": True},
        {"documents": [{"title": "a", "text": "b"}]},
    )
    yield from (ChatRequest(ONE.messages, fields) for fields in others)


def mixed(modalities: Sequence[Modality]) -> Iterator[ChatRequest]:
    """Items of several modalities in one message, and in two."""
    parts = [url_part(PART_OF[modality], "x") for modality in modalities]
    yield ChatRequest.of_user([*parts, text_part("a")]).bare()
    twice = ChatRequest.of_user([*parts, text_part("a"), *parts[::-1]]).bare()
    yield twice
    yield ChatRequest([*twice.messages, _turn("assistant", "b"), *twice.messages]).bare()


def worded() -> Iterator[ChatRequest]:
    """All the odd words, in a turn of the user's, the assistant's, and in parts."""
    for words in _WORDS:
        yield ChatRequest.of_user(words)
        yield ChatRequest([_turn("user", "a"), _turn("assistant", words), _turn("user", words)])
        yield ChatRequest.of_user([text_part(words), text_part(words)])


# Small enough to cost nothing, and taken by every processor.
_SMALL: dict[Modality, Shape] = {
    "image": ImageShape(64, 64),
    "video": VideoShape(4, 2.0, 2.0, 64, 64),
    "audio": AudioShape(16_000, 16_000),
}


class TextRenderer:
    """The renderer of a server of this model."""

    def __init__(self, model: OpenedModel) -> None:
        self._model = model
        self.prompting = model.prompting
        self.renderer = processors.renderer(model.engine_config)
        self._media: dict[Modality, Any] = {}

    @property
    def folder(self) -> Path:
        """Where its files lie: what is opened here is a folder."""
        return Path(self._model.config.tokenizer)

    def rendered(self, request: ChatRequest) -> tuple[str, list[int]]:
        """The prompt as the template writes it, and its tokens before placeholders grow. Raises
        vLLM's own errors.
        """
        return processors.rendered(self.renderer, request.messages, request.fields, self.prompting)

    @property
    def content(self) -> str:
        """How its template takes the content of a message. Raises ValueError without one."""
        return str(processors.content_format(self.renderer, self.prompting))

    def count(self, request: ChatRequest) -> int:
        """Tokens of the prompt that are not within the placeholder of an item."""
        _, ids = self.rendered(request)
        return len(ids) + self.grown(ids, request.items())

    def grown(self, ids: list[int], items: Mapping[Modality, int]) -> int:
        """By how much the prompt grows beside the placeholders when items take their places: less
        than nothing where a token stood for each.
        """
        prompt = self._split(ids, items)
        return sum(len(one) for one in prompt if not isinstance(one, str)) - len(ids)

    def split(self, request: ChatRequest) -> SplitPrompt:
        """The prompt with its items in their places."""
        return self._split(self.rendered(request)[1], request.items())

    def _split(self, ids: list[int], items: Mapping[Modality, int]) -> SplitPrompt:
        # The items of an encoder-decoder model are no part of the prompt.
        if not items or self._model.config.is_encoder_decoder:
            return (tuple(ids),)
        under = self._model.under(DEFAULT)
        for modality in items.keys() - self._media.keys():
            self._media[modality], _ = load(Blank(_SMALL[modality]), under)
        media = {m: [self._media[m]] * n for m, n in items.items()}
        output = processors.apply_processor(under.processor, list(ids), media)
        ids, end, prompt = output["prompt_token_ids"], 0, list[tuple[int, ...] | Modality]()
        found = output["mm_placeholders"]
        places = sorted((p.offset, p.length, m) for m in items for p in found.get(m, ()))
        for start, length, modality in places:
            prompt += [tuple(ids[end:start]), modality]
            end = start + length
        return (*prompt, tuple(ids[end:]))


def count_texts(texts: TextRenderer, request: CountTexts) -> TextsCounted:
    """Every request in order; one that vLLM refuses is answered with its words."""
    tokens: list[int | str] = []
    for one in request.requests:
        try:
            tokens.append(texts.count(one))
        except Exception as error:  # noqa: BLE001 - the refusal is the answer
            tokens.append(refusal_of(error))
    return TextsCounted(tuple(tokens))


def split_texts(texts: TextRenderer, request: SplitTexts) -> TextsSplit:
    """Every request in order."""
    prompts = list[SplitPrompt | None]()
    for one in request.requests:
        try:
            prompts.append(texts.split(one))
        except Exception:  # noqa: BLE001 - a server refuses it, too
            prompts.append(None)
    return TextsSplit(tuple(prompts))


def find_grammar(texts: TextRenderer, modalities: Sequence[Modality]) -> GrammarFound:
    """What vLLM says of requests, and how its template takes them: none of one in code."""
    config = texts.renderer.model_config
    found = grammar.request_grammar(config)
    # Its calls are parsed without a parser that is named (`OnlineRenderer.render_chat` in
    # vllm/renderers/online_renderer.py, 0.32).
    found["tools"] = getattr(texts.renderer.get_tokenizer(), "IS_MISTRAL_TOKENIZER", False)
    try:
        found["content"] = texts.content
    except ValueError:
        return GrammarFound(found)
    return GrammarFound({**found, "placeholders": grammar.placeholders(config, modalities)})


def find_counting(texts: TextRenderer, modalities: Sequence[Modality]) -> CountingFound:
    """What agrees with vLLM on all that is tried; without a modality where that alone does not."""
    left_out = []
    try:
        template = texts.prompting.template
        found = TextCounting(template=template, kwargs=dict(texts.prompting.kwargs))
        if template is None:
            found = replace(found, processor=processors.processor_template(texts.renderer))
        counter = TextCounter(str(texts.folder), texts.content, found)
        marks = grammar.placeholders(texts.renderer.model_config, modalities)
        found = replace(found, marks=marks if texts.content == "string" else {})
        found = _agreeing(texts, counter, found, (ONE, *conversations(), *worded()))
    except Exception as error:  # noqa: BLE001 - no template, or a tokenizer of its own kind
        return CountingFound(None, " ".join(str(error).split())[:200] or type(error).__name__)
    for modality in modalities:
        one = with_items(modality, 1)
        try:
            around = {**found.around, modality: texts.grown(texts.rendered(one)[1], one.items())}
            found = _agreeing(texts, counter, replace(found, around=around), around_items(modality))
        except Exception as error:  # noqa: BLE001 - it is not as vLLM's: it is left out
            left_out.append(f"{modality} items: {error}")
    if len(found.around) > 1:
        try:
            found = _agreeing(texts, counter, found, mixed(tuple(found.around)))
        except ValueError as error:
            found = replace(found, around={})
            left_out.append(f"items: {error}")
    if not texts.prompting.drops_tools:
        try:
            every = (*conversations(), *with_fields())
            found = _agreeing(texts, counter, replace(found, fields=True), every)
        except ValueError as error:
            left_out.append(f"tools: {error}")
    return CountingFound(found, " ".join("; ".join(left_out).split())[:200])


def _agreeing(
    texts: TextRenderer, counter: TextCounter, found: TextCounting, tried: Iterable[ChatRequest]
) -> TextCounting:
    """With what was compared. Raises ValueError where one is counted otherwise, or none is."""
    compared, why = 0, ""
    for one in tried:
        try:
            # Before vLLM, which changes messages that it is given.
            ours = counter.count(found, one)
        except Uncounted as error:
            why = why or str(error)
            continue
        try:
            theirs = texts.count(one)
        except Exception:  # noqa: BLE001, S112 - templates refuse some orders of turns
            continue
        if ours != theirs:
            raise ValueError(f"{ours} tokens for a text of which vLLM makes {theirs}")
        compared += 1
    if not compared:
        raise ValueError(why or "vLLM refuses all that was tried")
    return replace(found, compared=found.compared + compared)


# What normalisers may make of a byte (Unicode's FAQ on normalisation: NFKC makes 33 of 3, NFD 3 of
# 1). C is counted for in the bytes themselves.
_EXPANSION = {"NFC": 1, "Replace": 1, "Prepend": 1, "Strip": 1, "NFD": 3, "NFKC": 11, "NFKD": 11}


def text_bound(texts: TextRenderer, modalities: Sequence[Modality]) -> TextBound:
    """What was seen of the template, as a bound; without one `compared` is 0."""
    try:
        scale = _Scale(texts.renderer.get_tokenizer())
        return _found(texts, scale, modalities)
    except Exception:  # noqa: BLE001 - no template, or one of its own kind: no bound
        return TextBound()


class _Scale:
    """Weighs a rendered prompt: no tokenizer makes more tokens than bytes, and one of each added
    token, such as the marks of a turn.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        self.per_byte = _expansion(backend.get("normalizer"))
        # Such tokenizers put a space before the text, and some before each piece of it.
        self._each = 2 if re.search(r'"Prepend"|"Metaspace"', json.dumps(backend)) else 1
        added = sorted((t["content"] for t in backend["added_tokens"]), key=len, reverse=True)
        if self._each > 1 and min(map(len, added), default=2) < 2:
            raise ValueError("an added token of one letter, with a space before the next piece")
        # One of a single letter, such as Gemma 3's line break, weighs what its bytes do.
        added = [text for text in added if len(text) > 1]
        self._added = re.compile("|".join(map(re.escape, added))) if added else None
        self._once = 1 if self._each > 1 or '"add_prefix_space": true' in json.dumps(backend) else 0

    def weight(self, prompt: str) -> int:
        marks = len(self._added.findall(prompt)) if self._added else 0
        rest = self._added.sub("", prompt) if self._added else prompt
        return self._once + self._each * marks + self.per_byte * len(rest.encode())


def _expansion(normalizer: dict[str, Any] | None) -> int:
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        product = 1
        for part in normalizer["normalizers"]:
            product *= _expansion(part)
        return product
    if kind not in _EXPANSION:
        raise ValueError(f"its tokenizer's normaliser is {kind}")
    return _EXPANSION[kind]


def _found(texts: TextRenderer, scale: _Scale, modalities: Sequence[Modality]) -> TextBound:
    def weight(request: ChatRequest) -> int:
        return scale.weight(texts.rendered(request)[0])

    one = ONE
    base = max(0, weight(one) - scale.per_byte * one.asked().text_bytes)
    bound = TextBound(base_tokens=base, tokens_per_byte=scale.per_byte)
    seen = [one]
    for request in conversations():
        try:
            more = weight(request) - base - scale.per_byte * request.asked().text_bytes
        except Exception:  # noqa: BLE001, S112 - templates refuse some orders of turns
            continue
        seen.append(request)
        each = -(-more // max(1, len(request.messages) - 1))
        bound = replace(bound, message_tokens=max(bound.message_tokens, each))
    for modality in modalities:
        around: list[int] = []
        for count in ITEMS:
            request = with_items(modality, count)
            try:
                prompt, ids = texts.rendered(request)
            except Exception:  # models take one, or any number
                if around:
                    break
                raise
            plain = most(bound, request, {})
            more = scale.weight(prompt) - plain + texts.grown(ids, request.items())
            around.append(-(-more // count))
            seen.append(request)
        bound = replace(bound, item_tokens={**bound.item_tokens, modality: max(0, *around)})
    bound = _with_tools(bound, weight)
    seen += list(worded())
    compared = 0
    for request in seen:
        # A template that writes some words more than once, or a tokenizer that makes more tokens
        # than the text has bytes.
        if weight(request) > most(bound, request) + _taken(texts, request):
            return TextBound()
        if texts.count(request) > most(bound, request):
            return TextBound()
        compared += 1
    return replace(bound, compared=compared)


def _taken(texts: TextRenderer, request: ChatRequest) -> int:
    """Tokens that the rendered prompt has and that give way to placeholders."""
    items = request.items()
    return -texts.grown(texts.rendered(request)[1], items) if items else 0


def _with_tools(bound: TextBound, weight: Callable[[ChatRequest], int]) -> TextBound:
    """As it was if a template writes more of tools than their JSON and a constant."""
    around = []
    tools = ([_TOOL], [_BARE], [_TOOL, _BARE], [_TOOL] * 3)
    for given, words in itertools.product(tools, ("a", "b" * 9)):
        request = ChatRequest([_turn("user", words)], {"tools": given})
        try:
            around.append(weight(request) - most(replace(bound, tools_tokens=0), request))
        except Exception:  # noqa: BLE001
            return bound
    return replace(bound, tools_tokens=max(0, *around))


def most(
    bound: TextBound, request: ChatRequest, items: Mapping[Modality, int] | None = None
) -> int:
    """What bounds a request, or one like it with these items. Raises ValueError if nothing does."""
    found = bound.most(request.asked(), request.items() if items is None else items)
    if found is None:
        raise ValueError("nothing bounds a request that was tried")
    return found
