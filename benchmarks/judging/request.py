"""A request in few words: what a kept example holds, and the body that it stands for."""

from __future__ import annotations

import base64
import mimetypes
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from judging.pool import Medium, Pool

# The last four are `data:` URLs as some clients write them: in lines of 76, without the padding,
# as another type, and percent-encoded.
Via = Literal["file", "data", "http", "input_audio", "wrapped", "unpadded", "mistyped", "percent"]
Script = Literal["latin", "cyrillic", "emoji"]
# What is filled up to the context's end: the text, or the answer that is asked for.
Fill = Literal["text", "max_tokens", "max_completion_tokens"]
AnswerKnob = Literal["max_tokens", "max_completion_tokens"]

# Longer answers are streamed and left at their first event.
_STREAMED_TOKENS = 8
# Fields that move what a request takes or may take, by a name for each.
EXTRAS: Mapping[str, Mapping[str, Any]] = {
    "30 frames a second": {"media_io_kwargs": {"video": {"fps": 30}}},
    "4 frames": {"media_io_kwargs": {"video": {"num_frames": 4}}},
    "every frame": {"media_io_kwargs": {"video": {"num_frames": -1, "fps": -1}}},
    "truncated": {"truncate_prompt_tokens": 64},
    "other pixels": {"mm_processor_kwargs": {"max_pixels": 1 << 24}},
    "two answers": {"n": 2},
    "no prompt for an answer": {"add_generation_prompt": False},
    "logarithms of the prompt": {"prompt_logprobs": 0},
    "at least 30 tokens": {"min_tokens": 30},
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Item:
    """One medium of the pool and how its bytes are sent."""

    medium: str
    via: Via = "file"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; `words` are characters of text, `calls` the tool calls of an assistant."""

    role: str = "user"
    words: int = 8
    items: tuple[Item, ...] = ()
    calls: int = 0
    script: Script = "latin"


@dataclass(frozen=True, slots=True)
class Room:
    """Fill `what` so that prompt and answer take max_model_len + `offset` tokens."""

    what: Fill
    offset: int


@dataclass(frozen=True, slots=True)
class Request:
    """`answer` None sends neither max_tokens nor max_completion_tokens."""

    turns: tuple[Turn, ...]
    answer: int | None = 1
    knob: AnswerKnob = "max_tokens"
    tools: int = 0
    room: Room | None = None
    extra: str | None = None

    @property
    def items(self) -> list[Item]:
        return [item for turn in self.turns for item in turn.items]


# Asked one after the other, from a server without cached media.
Order = tuple[Request, ...]

_LETTERS = {"latin": "a", "cyrillic": "ж", "emoji": "🜂"}


def body(request: Request, pool: Pool, web: str) -> dict[str, Any]:
    """The chat request, without its model; `web` is the URL below which the pool is served."""
    found: dict[str, Any] = {"messages": [_message(turn, pool, web) for turn in request.turns]}
    if request.answer is not None:
        found[request.knob] = request.answer
        if request.answer > _STREAMED_TOKENS:
            found["stream"] = True
    else:
        found["stream"] = True
    if request.extra:
        found |= EXTRAS[request.extra]
    if request.tools:
        # The server need not call any: they only have to be read, and counted.
        found |= {"tools": [_TOOL] * request.tools, "tool_choice": "none"}
    return found


def lengthened(plain: Mapping[str, Any], what: Fill, tokens: int) -> dict[str, Any]:
    """`body` with so many more tokens of text in its last message, or with such an answer."""
    if what == "text":
        *before, last = plain["messages"]
        content = last["content"]
        more = "a" * tokens
        longer = content + more if isinstance(content, str) else [*content, _text(more)]
        return {**plain, "messages": [*before, {**last, "content": longer}]}
    others = {k: v for k, v in plain.items() if k not in ("max_tokens", "max_completion_tokens")}
    return {**others, what: tokens, "stream": True}


def summary(request: Request) -> str:
    """One line."""
    turns = request.turns if len(request.turns) < 6 else request.turns[:1]
    said = [
        f"{turn.role}({', '.join([f'{turn.words} {turn.script}', *map(_named, turn.items)])}"
        + (f", {turn.calls} calls" if turn.calls else "")
        + ")"
        for turn in turns
    ]
    said += [f"... {len(request.turns)} messages"] if len(turns) < len(request.turns) else []
    said += [f"{request.tools} tools"] if request.tools else []
    said += [request.extra] if request.extra else []
    if request.room:
        said.append(f"{request.room.what} fills the context{request.room.offset:+d}")
    elif request.answer != 1:
        said.append(f"{request.knob}={request.answer}")
    return " ".join(said)


def _named(item: Item) -> str:
    return item.medium if item.via == "file" else f"{item.medium} by {item.via}"


def _message(turn: Turn, pool: Pool, web: str) -> dict[str, Any]:
    words = _LETTERS[turn.script] * turn.words
    found: dict[str, Any] = {"role": turn.role, "content": words}
    if turn.items:
        parts = [_part(pool[item.medium], item.via, web) for item in turn.items]
        found["content"] = [_text(words), *parts] if words else parts
    if turn.role == "tool":
        found["tool_call_id"] = "call-0"
    if turn.calls:
        found["tool_calls"] = [
            {
                "id": f"call-{number}",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"place": "Oslo"}'},
            }
            for number in range(turn.calls)
        ]
    return found


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def _part(medium: Medium, via: Via, web: str) -> dict[str, Any]:
    kind = f"{medium.kind}_url"
    if medium.is_frames:
        url = f"data:video/jpeg;base64,{medium.path.read_text('ascii')}"
    elif via == "http":
        url = f"{web}/{medium.name}"
    elif via == "file":
        url = medium.path.as_uri()
    else:
        data = base64.b64encode(medium.path.read_bytes()).decode()
        if via == "input_audio":
            sound = {"data": data, "format": medium.path.suffix[1:]}
            return {"type": "input_audio", "input_audio": sound}
        url = _data_url(medium, via, data)
    return {"type": kind, kind: {"url": url}}


def _data_url(medium: Medium, via: Via, data: str) -> str:
    mime = mimetypes.guess_type(medium.name)[0] or f"{medium.kind}/x-unknown"
    match via:
        case "wrapped":
            data = base64.encodebytes(medium.path.read_bytes()).decode()
        case "unpadded":
            data = data.rstrip("=")
        case "mistyped":
            mime = f"{medium.kind}/x-other"
        case "percent":
            return f"data:{mime},{urllib.parse.quote(medium.path.read_bytes())}"
    return f"data:{mime};base64,{data}"
