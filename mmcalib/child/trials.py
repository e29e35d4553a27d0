"""Requests that show what a chat template and a tokenizer do: rendered once for every model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mmcalib.corpus.chat import bare
from mmcalib.corpus.content_parts import PART_OF, text_part, url_part
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import BareRequest

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
_BARE = {"type": "function", "function": {"name": "f"}}
ITEMS = (1, 2, 3)

Message = dict[str, Any]


def _turn(role: str, words: str) -> Message:
    return {"role": role, "content": words}


def _request(messages: list[Message], items: dict[Modality, int] | None = None) -> BareRequest:
    return BareRequest(bare(messages), {}, items or {})


ONE = _request([_turn("user", "a")])


def with_items(modality: Modality, count: int, words: str = "a") -> BareRequest:
    """One message of so many items between words."""
    parts = [url_part(PART_OF[modality], "x") for _ in range(count)]
    content = [text_part(words), *parts, text_part("b" if words == "a" else words)]
    return _request([{"role": "user", "content": content}], {modality: count})


def around_items(modality: Modality) -> Iterator[BareRequest]:
    """One to three items, and words beside them with which what surrounds an item may merge."""
    for count in ITEMS:
        yield with_items(modality, count)
    for words in ("\n", "\n\n", " ", ""):
        yield with_items(modality, 1, words)


def conversations() -> Iterator[BareRequest]:
    """Orders of turns, of which templates refuse some."""
    return map(_request, _conversations())


def _conversations() -> Iterator[list[Message]]:
    user, assistant = _turn("user", "a"), _turn("assistant", "b")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    yield [user, assistant, user]
    yield [_turn("system", "s"), user]
    yield [_turn("system", "s"), user, assistant, user]
    yield [user, assistant] * 4 + [user]
    yield [user] * 4
    yield [_turn("system", ""), *([_turn("user", ""), _turn("assistant", "")] * 3), user]
    yield [_turn("developer", "s"), user]
    yield [
        user,
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "tool", "tool_call_id": "1", "content": ""},
        user,
    ]


def mixed(modalities: Sequence[Modality]) -> Iterator[BareRequest]:
    """Items of several modalities in one message, and in two."""
    parts = [url_part(PART_OF[modality], "x") for modality in modalities]
    once = [*parts, text_part("a")]
    yield _request([{"role": "user", "content": once}], dict.fromkeys(modalities, 1))
    content = [*parts, text_part("a"), *parts[::-1]]
    yield _request([{"role": "user", "content": content}], dict.fromkeys(modalities, 2))
    turns = [{"role": "user", "content": content}, _turn("assistant", "b")] * 2
    yield _request(turns[:3], dict.fromkeys(modalities, 4))


def worded() -> Iterator[BareRequest]:
    """All the odd words, in a turn of the user's, the assistant's, and in parts."""
    for words in _WORDS:
        yield _request([_turn("user", words)])
        yield _request([_turn("user", "a"), _turn("assistant", words), _turn("user", words)])
        yield _request([{"role": "user", "content": [text_part(words), text_part(words)]}])


def tooled() -> Iterator[BareRequest]:
    """With tools, one to three."""
    for tools in ([_TOOL], [_BARE], [_TOOL, _BARE], [_TOOL] * 3):
        for words in ("a", "b" * 9):
            yield BareRequest([_turn("user", words)], {"tools": tools})
