"""A request in few words: what a kept example holds, and the body that it stands for."""

from __future__ import annotations

import base64
import json
import mimetypes
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from judging.bodies import MESSAGES, PARTS, TOOLS, filled
from judging.pool import Medium, Pool

# `data:` URLs as some clients write them: in lines of 76, without the padding or with more of it,
# with spaces, as another type, of none, with a charset, in capitals, and percent-encoded.
Base64Via = Literal["wrapped", "unpadded", "overpadded", "spaced", "mistyped", "untyped", "charset"]
DataVia = Literal[Base64Via, "capitals", "percent"]
# `file://` URLs with a fragment, a query, a host or an escape, as they are typed, and the path.
FileVia = Literal["fragment", "query", "localhost", "host", "escaped", "raw", "FILE", "bare"]
Via = Literal["file", "data", "http", "elsewhere", "s3", "input_audio", "empty", DataVia, FileVia]
Script = Literal["latin", "cyrillic", "emoji"]
# What is filled up to the context's end: the text, or the answer that is asked for.
Fill = Literal["text", "max_tokens", "max_completion_tokens"]
AnswerKnob = Literal["max_tokens", "max_completion_tokens"]

# Longer answers are streamed and left at their first event.
_STREAMED_TOKENS = 8
_ANSWERS = ("max_completion_tokens", "max_tokens")
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
    """One message; `words` are characters of text, `calls` the tool calls of an assistant, `parts`
    names in `PARTS`, and `mark` one of `MARKS`, which ends the text.
    """

    role: str = "user"
    words: int = 8
    items: tuple[Item, ...] = ()
    calls: int = 0
    script: Script = "latin"
    parts: tuple[str, ...] = ()
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """Fill `what` so that prompt and answer take max_model_len + `offset` tokens."""

    what: Fill
    offset: int


@dataclass(frozen=True, slots=True)
class Request:
    """`answer` None sends neither max_tokens nor max_completion_tokens. `fields` are JSON, `before`
    names one of `MESSAGES` and `choice` one of `TOOLS`.
    """

    turns: tuple[Turn, ...]
    answer: int | None = 1
    knob: AnswerKnob = "max_tokens"
    tools: int = 0
    room: Room | None = None
    extra: str | None = None
    fields: str = ""
    before: str = ""
    choice: str = ""

    @property
    def items(self) -> list[Item]:
        return [item for turn in self.turns for item in turn.items]


# Asked one after the other, from a server without cached media.
Order = tuple[Request, ...]


def innocent(request: Request) -> Request | None:
    """A plain message with the first of its media, or None if there is none other than itself."""
    plain = [Request((Turn(items=(Item(item.medium),)),)) for item in request.items[:1]]
    return next((one for one in plain if one != request), None)


_LETTERS = {"latin": "a", "cyrillic": "ж", "emoji": "🜂"}


def body(request: Request, pool: Pool, web: str) -> dict[str, Any]:
    """The chat request, without its model; `web` is the URL below which the pool is served."""
    turns = [_message(turn, pool, web) for turn in request.turns]
    found: dict[str, Any] = {"messages": [*filled(MESSAGES.get(request.before, []), pool), *turns]}
    if request.answer is not None:
        found[request.knob] = request.answer
    if request.extra:
        found |= EXTRAS[request.extra]
    if request.tools:
        # The server need not call any: they only have to be read, and counted.
        found |= {"tools": [_TOOL] * request.tools, "tool_choice": "none"}
    found |= {**TOOLS.get(request.choice, {}), **json.loads(request.fields or "{}")}
    if not any(found.get(name) in range(_STREAMED_TOKENS + 1) for name in _ANSWERS):
        found.setdefault("stream", True)
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
        + "".join(f", {one}" for one in (*turn.parts, turn.mark) if one)
        + ")"
        for turn in turns
    ]
    said += [f"... {len(request.turns)} messages"] if len(turns) < len(request.turns) else []
    said += [f"{request.tools} tools"] if request.tools else []
    said += [f"after {request.before}"] if request.before else []
    said += [f"tools: {request.choice}"] if request.choice else []
    said += [one for one in (request.extra, request.fields) if one]
    if request.room:
        said.append(f"{request.room.what} fills the context{request.room.offset:+d}")
    elif request.answer != 1:
        said.append(f"{request.knob}={request.answer}")
    return " ".join(said)


def _named(item: Item) -> str:
    return item.medium if item.via == "file" else f"{item.medium} by {item.via}"


def _message(turn: Turn, pool: Pool, web: str) -> dict[str, Any]:
    words = _LETTERS[turn.script] * turn.words + turn.mark
    found: dict[str, Any] = {"role": turn.role, "content": words}
    if turn.items or turn.parts:
        parts = [_part(pool[item.medium], item.via, web) for item in turn.items]
        parts += [filled(PARTS[name], pool) for name in turn.parts]
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
    elif (named := _named_url(medium, via, web)) is not None:
        url = named
    else:
        data = base64.b64encode(medium.path.read_bytes()).decode()
        if via == "input_audio":
            sound = {"data": data, "format": medium.path.suffix[1:]}
            return {"type": "input_audio", "input_audio": sound}
        url = _data_url(medium, via, data)
    return {"type": kind, kind: {"url": url}}


def _named_url(medium: Medium, via: Via, web: str) -> str | None:
    """Of what is not sent itself."""
    uri, path = medium.path.as_uri(), str(medium.path)
    urls: Mapping[Via, str] = {
        "elsewhere": f"{web.replace('127.0.0.1', 'localhost')}/{medium.name}",
        "http": f"{web}/{medium.name}",
        "s3": f"s3://bucket/{medium.name}",
        "empty": "",
        "file": uri,
        "fragment": f"{uri}#t=1",
        "query": f"{uri}?v=1",
        "raw": f"file://{path}",
        "localhost": f"file://localhost{path}",
        "host": f"file://elsewhere{path}",
        "escaped": uri.replace("-", "%2D"),
        "FILE": uri.replace("file", "FILE", 1),
        "bare": path,
    }
    return urls.get(via)


def _data_url(medium: Medium, via: Via, data: str) -> str:
    mime = mimetypes.guess_type(medium.name)[0] or f"{medium.kind}/x-unknown"
    match via:
        case "wrapped":
            data = base64.encodebytes(medium.path.read_bytes()).decode()
        case "unpadded":
            data = data.rstrip("=")
        case "overpadded":
            data += "="
        case "spaced":
            data = f" {data[:8]} {data[8:]} "
        case "mistyped":
            mime = f"{medium.kind}/x-other"
        case "untyped":
            mime = ""
        case "charset":
            mime += ";charset=utf-8"
        case "capitals":
            return f"DATA:{mime};BASE64,{data}"
        case "percent":
            return f"data:{mime},{urllib.parse.quote(medium.path.read_bytes())}"
    return f"data:{mime};base64,{data}"
