"""Count text tokens with vLLM, bound them, and find how to count them without vLLM."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmcalib.child.failures import refusal_reason
from mmcalib.child.processor import load
from mmcalib.child.text_counter import TextCounter, Uncounted
from mmcalib.corpus.chat import PART_OF, ChatRequest, Message, text_part, url_part
from mmcalib.corpus.grammar import MARK_TOKEN
from mmcalib.domain.items import TextBound, TextCounting
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.domain.traffic import SplitPrompt
from mmcalib.engine import messages as m
from mmcalib.releases import grammar, processors
from mmcalib.text import one_line

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel

# Texts that templates may treat specially: line breaks, thinking tags, quotes, other scripts.
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
    parts = [url_part(PART_OF[modality], "x") for _ in range(count)]
    last = text_part("b" if words == "a" else words)
    return ChatRequest.of_user([text_part(words), *parts, last]).strip_media()


def around_items(modality: Modality) -> Iterator[ChatRequest]:
    """Yield one to three items, also next to white space that may merge with their placeholders."""
    for count in ITEMS:
        yield with_items(modality, count)
    for words in ("\n", "\n\n", " ", ""):
        yield with_items(modality, 1, words)


def conversations() -> Iterator[ChatRequest]:
    """Yield orders of turns; templates reject some. vLLM changes messages, so none is shared."""
    user, assistant = _turn("user", "a"), _turn("assistant", "b")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    tool_turns: list[Message] = [
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
        [user, *tool_turns, user],
    ):
        yield ChatRequest(turns).strip_media()


def with_fields() -> Iterator[ChatRequest]:
    strict = {"type": "function", "function": {**_BARE["function"], "strict": True, "x": 1}}
    tool_turns = [turn for chat in conversations() for turn in chat.messages if len(turn) > 2]
    for tools in ([_TOOL], [_BARE, strict], [_TOOL] * 3):
        for messages in (ONE.messages, [*ONE.messages, *tool_turns, *ONE.messages]):
            yield ChatRequest(list(messages), {"tools": tools, "tool_choice": "none"})
    (call,), cached = tool_turns[0]["tool_calls"][:1], {**text_part("a"), "cache_control": {"t": 1}}
    odd = ({**_turn("user", "a"), "name": "n"}, {"role": "user", "content": [cached]})
    thought = {**_turn("assistant", "b"), "reasoning": "c", "name": "n"}
    called = {"role": "assistant", "content": "b", "tool_calls": [{**call, "index": 0}]}
    yield from (ChatRequest([turn, dict(thought), *ONE.messages]) for turn in odd)
    yield ChatRequest([*ONE.messages, called, {**tool_turns[1], "name": "f"}, *ONE.messages])
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


def with_mixed_items(modalities: Sequence[Modality]) -> Iterator[ChatRequest]:
    parts = [url_part(PART_OF[modality], "x") for modality in modalities]
    yield ChatRequest.of_user([*parts, text_part("a")]).strip_media()
    twice = ChatRequest.of_user([*parts, text_part("a"), *parts[::-1]]).strip_media()
    yield twice
    yield ChatRequest([*twice.messages, _turn("assistant", "b"), *twice.messages]).strip_media()


def with_special_texts() -> Iterator[ChatRequest]:
    for words in _WORDS:
        yield ChatRequest.of_user(words)
        yield ChatRequest([_turn("user", "a"), _turn("assistant", words), _turn("user", words)])
        yield ChatRequest.of_user([text_part(words), text_part(words)])


# Cheap, and accepted by every processor.
_SMALL: dict[Modality, Shape] = {
    "image": ImageShape(64, 64),
    "video": VideoShape(4, 2.0, 2.0, 64, 64),
    "audio": AudioShape(16_000, 16_000),
}


class TextRenderer:
    """Renders and counts prompts like a server of this model."""

    def __init__(self, model: OpenedModel) -> None:
        self.model = model
        self.prompting = model.prompting
        self.renderer = processors.renderer(model.engine_config)
        self._media: dict[Modality, Any] = {}

    def render(self, request: ChatRequest) -> tuple[str, list[int]]:
        """Return the prompt and its tokens before placeholders expand. Raises vLLM's errors."""
        return processors.render_prompt(
            self.renderer, request.messages, request.fields, self.prompting
        )

    @property
    def content(self) -> str:
        """The template's content format. Raises ValueError without a template."""
        return str(processors.content_format(self.renderer, self.prompting))

    def count(self, request: ChatRequest) -> int:
        """Count the tokens of the prompt outside the placeholders of items."""
        _, ids = self.render(request)
        return len(ids) + self.token_gain(ids, request.items())

    def token_gain(self, ids: list[int], items: Mapping[Modality, int]) -> int:
        """Return the text tokens gained by inserting items; negative if marks are replaced."""
        prompt = self.split(ids, items)
        return sum(len(part) for part in prompt if not isinstance(part, str)) - len(ids)

    def split(self, ids: list[int], items: Mapping[Modality, int]) -> SplitPrompt:
        """Return the tokens between the placeholders of these items, and the items' modalities."""
        # An encoder-decoder model's items are not in the prompt.
        if not items or self.model.config.is_encoder_decoder:
            return (tuple(ids),)
        under = self.model.with_setting(DEFAULT)
        for modality in items.keys() - self._media.keys():
            self._media[modality], _ = load(m.Blank(_SMALL[modality]), under)
        media = {modality: [self._media[modality]] * n for modality, n in items.items()}
        output = processors.apply_processor(under.processor, list(ids), media)
        ids, end, prompt = output["prompt_token_ids"], 0, list[tuple[int, ...] | Modality]()
        placeholders = output["mm_placeholders"]
        places = sorted((p.offset, p.length, i) for i in items for p in placeholders.get(i, ()))
        for start, length, modality in places:
            prompt += [tuple(ids[end:start]), modality]
            end = start + length
        return (*prompt, tuple(ids[end:]))


def count_texts(texts: TextRenderer, request: m.CountTexts) -> tuple[int | str, ...]:
    """Count every request in order; a request that vLLM refuses gets vLLM's error."""
    tokens: list[int | str] = []
    for chat in request.requests:
        try:
            tokens.append(texts.count(chat))
        except Exception as error:  # noqa: BLE001 - the error is the answer
            tokens.append(refusal_reason(error))
    return tuple(tokens)


def split_texts(texts: TextRenderer, request: m.SplitTexts) -> tuple[SplitPrompt | None, ...]:
    prompts = list[SplitPrompt | None]()
    for chat in request.requests:
        try:
            prompts.append(texts.split(texts.render(chat)[1], chat.items()))
        except Exception:  # noqa: BLE001 - a server refuses it too
            prompts.append(None)
    return tuple(prompts)


def find_grammar(texts: TextRenderer, modalities: Sequence[Modality]) -> dict[str, Any]:
    """Return vLLM's grammar of requests, with the template's format unless vLLM renders in code."""
    config = texts.renderer.model_config
    rules = grammar.request_grammar(config)
    # Mistral's tool calls are parsed without a configured parser (`OnlineRenderer.render_chat` in
    # vllm/renderers/online_renderer.py, 0.32).
    rules["tools"] = getattr(texts.renderer.get_tokenizer(), "IS_MISTRAL_TOKENIZER", False)
    rules["structured_outputs"] = str(texts.model.engine_config.structured_outputs_config.backend)
    try:
        rules["content"] = texts.content
    except ValueError:
        return rules
    return {**rules, "placeholders": grammar.placeholders(config, modalities)}


def find_counting(texts: TextRenderer, modalities: Sequence[Modality]) -> m.CountingResult:
    """Find a counting that agrees with vLLM on all tried requests; drop parts that do not agree."""
    left_out = []
    try:
        template = texts.prompting.template
        counting = TextCounting(template=template, kwargs=dict(texts.prompting.kwargs))
        if template is None:
            counting = replace(counting, processor=processors.processor_template(texts.renderer))
        counter = TextCounter(str(texts.model.config.tokenizer), texts.content, counting)
        marks = grammar.placeholders(texts.renderer.model_config, modalities)
        counting = replace(counting, marks=marks if texts.content == "string" else {})
        found = {m: _written(texts, counter, counting, m, mark) for m, mark in marks.items()}
        counting = replace(counting, written={m: mark for m, mark in found.items() if mark})
        plain = (ONE, *conversations(), *with_special_texts())
        counting = _compare_counts(texts, counter, counting, plain)
    except Exception as error:  # noqa: BLE001 - no template, or an unsupported tokenizer
        return m.CountingResult(None, one_line(str(error)) or type(error).__name__)
    if counter.reads_clock:
        left_out.append("texts: the chat template reads the clock")
    for modality in modalities:
        chat = with_items(modality, 1)
        try:
            gain = texts.token_gain(texts.render(chat)[1], chat.items())
            more = replace(counting, around={**counting.around, modality: gain})
            counting = _compare_counts(texts, counter, more, around_items(modality))
        except Exception as error:  # noqa: BLE001 - the modality is left out
            left_out.append(f"{modality} items: {error}")
    if len(counting.around) > 1:
        try:
            mixed = with_mixed_items(tuple(counting.around))
            counting = _compare_counts(texts, counter, counting, mixed)
        except ValueError as error:
            counting = replace(counting, around={})
            left_out.append(f"items: {error}")
    if not texts.prompting.drops_tools:
        try:
            requests = (*conversations(), *with_fields())
            counting = _compare_counts(texts, counter, replace(counting, fields=True), requests)
        except ValueError as error:
            left_out.append(f"tools: {error}")
    return m.CountingResult(counting, one_line("; ".join(left_out)))


def _written(
    texts: TextRenderer,
    counter: TextCounter,
    counting: TextCounting,
    modality: Modality,
    placeholder: str,
) -> str | None:
    """Return the text that a prompt must have for each item; None if vLLM needs none."""
    try:
        texts.token_gain(texts.render(ONE)[1], {modality: 1})
    except Exception:  # noqa: BLE001 - vLLM misses the item's place in the prompt
        candidates = [placeholder, *MARK_TOKEN.findall(placeholder)]
    else:
        return None
    for count in ITEMS:
        chat = with_items(modality, count)
        try:
            ours, theirs = counter.render(counting, chat), texts.render(chat)[0]
        except Exception:  # noqa: BLE001 - a model may accept only one item
            if count == ITEMS[0]:
                return None
            break
        candidates = [mark for mark in candidates if ours == theirs and ours.count(mark) == count]
    return next(iter(candidates), None)


def _compare_counts(
    texts: TextRenderer,
    counter: TextCounter,
    counting: TextCounting,
    requests: Iterable[ChatRequest],
) -> TextCounting:
    """Add the number of requests that agree. Raises ValueError if one differs, or none counts."""
    compared, rendered, why = 0, 0, ""
    for chat in requests:
        prompt, ours = None, None
        try:
            # Render before vLLM does, because vLLM changes the messages.
            prompt = counter.render(counting, chat)
            ours = counter.count(counting, chat)
        except Uncounted as error:
            why = why or str(error)
        if prompt is None:
            continue
        try:
            text, ids = texts.render(chat)
            theirs = len(ids) + texts.token_gain(ids, chat.items())
        except Exception:  # noqa: BLE001, S112 - templates reject some orders of turns
            continue
        if prompt != text:
            raise ValueError("mmcalib and vLLM render a text differently")
        rendered += 1
        if ours not in (None, theirs):
            raise ValueError(f"mmcalib counts {ours} tokens in a text, vLLM {theirs}")
        compared += ours is not None
    if not rendered:
        raise ValueError(why or "vLLM refuses every tried request")
    return replace(counting, compared=counting.compared + compared)


# Most bytes that a normaliser makes of one byte (Unicode's FAQ on normalisation: NFKC makes 33 of
# 3, NFD 3 of 1). NFC's growth is already in the bytes.
_EXPANSION = {"NFC": 1, "Replace": 1, "Prepend": 1, "Strip": 1, "NFD": 3, "NFKC": 11, "NFKD": 11}


def text_bound(texts: TextRenderer, modalities: Sequence[Modality]) -> TextBound:
    """Bound text tokens by trying the template; `compared` is 0 if there is no bound."""
    try:
        return _find_bound(texts, _PromptBound(texts.renderer.get_tokenizer()), modalities)
    except Exception:  # noqa: BLE001 - no template, or an unsupported one: no bound
        return TextBound()


class _PromptBound:
    """Bounds a prompt's tokens: one per byte, and one per added token, such as a turn's marks."""

    def __init__(self, tokenizer: Any) -> None:
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        self.per_byte = _expansion(backend.get("normalizer"))
        # These tokenizers put a space before the text, and some before each piece of it.
        self._per_mark = 2 if re.search(r'"Prepend"|"Metaspace"', json.dumps(backend)) else 1
        added = sorted((t["content"] for t in backend["added_tokens"]), key=len, reverse=True)
        if self._per_mark > 1 and min(map(len, added), default=2) < 2:
            raise ValueError("an added token has one letter, with a space before the next piece")
        # An added token of one letter, such as Gemma 3's line break, counts by its bytes.
        added = [text for text in added if len(text) > 1]
        self._marks = re.compile("|".join(map(re.escape, added))) if added else None
        has_prefix = self._per_mark > 1 or '"add_prefix_space": true' in json.dumps(backend)
        self._prefix = 1 if has_prefix else 0

    def most_tokens(self, prompt: str) -> int:
        marks = len(self._marks.findall(prompt)) if self._marks else 0
        rest = self._marks.sub("", prompt) if self._marks else prompt
        return self._prefix + self._per_mark * marks + self.per_byte * len(rest.encode())


def _expansion(normalizer: dict[str, Any] | None) -> int:
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        return math.prod(map(_expansion, normalizer["normalizers"]))
    if kind not in _EXPANSION:
        raise ValueError(f"the tokenizer's normaliser {kind} is not supported")
    return _EXPANSION[kind]


def _find_bound(
    texts: TextRenderer, of_prompt: _PromptBound, modalities: Sequence[Modality]
) -> TextBound:
    def weight(request: ChatRequest) -> int:
        return of_prompt.most_tokens(texts.render(request)[0])

    base = max(0, weight(ONE) - of_prompt.per_byte * ONE.measure_context().text_bytes)
    bound = TextBound(base_tokens=base, tokens_per_byte=of_prompt.per_byte)
    tried, refuses_orders = [ONE], False
    for request in conversations():
        try:
            text_bytes = request.measure_context().text_bytes
            more = weight(request) - base - of_prompt.per_byte * text_bytes
        except Exception:  # noqa: BLE001 - templates reject some orders of turns
            if request.alternates:
                return TextBound()
            refuses_orders = True
            continue
        tried.append(request)
        each = -(-more // max(1, len(request.messages) - 1))
        bound = replace(bound, message_tokens=max(bound.message_tokens, each))
    for modality in modalities:
        around: list[int] = []
        for count in ITEMS:
            request = with_items(modality, count)
            try:
                prompt, ids = texts.render(request)
            except Exception:  # a model may accept only one item
                if around:
                    break
                raise
            plain = bound_tokens(bound, request, {})
            more = of_prompt.most_tokens(prompt) - plain + texts.token_gain(ids, request.items())
            around.append(-(-more // count))
            tried.append(request)
        bound = replace(bound, item_tokens={**bound.item_tokens, modality: max(0, *around)})
    bound = _with_tools(bound, weight)
    tried += list(with_special_texts())
    for request in tried:
        most, items = bound_tokens(bound, request), request.items()
        gain = texts.token_gain(texts.render(request)[1], items) if items else 0
        # The template repeats some words, or the tokenizer makes more tokens than there are bytes.
        if weight(request) > most - gain or texts.count(request) > most:
            return TextBound()
    return replace(bound, compared=len(tried), refuses_orders=refuses_orders)


def _with_tools(bound: TextBound, weight: Callable[[ChatRequest], int]) -> TextBound:
    """Add tools to the bound, unless the template writes more than their JSON and a constant."""
    around = []
    tool_lists = ([_TOOL], [_BARE], [_TOOL, _BARE], [_TOOL] * 3)
    for tools, words in itertools.product(tool_lists, ("a", "b" * 9)):
        request = ChatRequest([_turn("user", words)], {"tools": tools})
        try:
            around.append(weight(request) - bound_tokens(replace(bound, tools_tokens=0), request))
        except Exception:  # noqa: BLE001
            return bound
    return replace(bound, tools_tokens=max(0, *around))


def bound_tokens(
    bound: TextBound, request: ChatRequest, items: Mapping[Modality, int] | None = None
) -> int:
    """Return the bound of a request, or of one with these items. Raises ValueError without one."""
    items = request.items() if items is None else items
    tokens = bound.max_tokens(request.measure_context(), items)
    if tokens is None:
        raise ValueError("a tried request has no bound")
    return tokens
