"""One line of a requests file as text, checked where it enters: OpenAI chat messages.

Read are `{"messages": [...]}`, the same in the envelope of a batch file, a proxy or LiteLLM, bodies
of /v1/responses, rows of training sets with columns of media beside their messages, and lines of
vLLM's custom benchmarks and offline prompts, `{"prompt": ..., "image_files": [...]}`.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from mmcalib.corpus.chat import (
    PART_OF,
    TEXT_FIELDS,
    ChatRequest,
    Message,
    medium_of,
    text_part,
    url_part,
)
from mmcalib.domain.shapes import Modality

# Inline media of up to 36 MiB, because base64 makes four bytes of three. A line is held in memory
# some five times over while it is read.
LONGEST_LINE_BYTES = 48 << 20
# Commas and brackets, of which base64 has none. Each may be a value of a hundred times its length.
_MOST_VALUES = 200_000

# Where batch files, proxies and LiteLLM put the body of a request; it may be JSON in a string.
_ENVELOPES = (
    *("body", "request", "request_body", "payload"),
    *("standard_logging_object", "proxy_server_request"),
)
# LiteLLM keeps a request's other fields beside its messages.
_PARAMETERS = "model_parameters"
# As the traces that vLLM's benchmarks replay name it, by default (`TimedTrace` in
# vllm/benchmarks/datasets/datasets.py, 0.32), and as LiteLLM does.
_TIME_FIELDS = ("timestamp", "startTime")

# A server refuses these unless it is started with the flag, which voids every cap
# (vllm/entrypoints/generate/base/protocol.py, 0.32).
_UNTRUSTED: Mapping[str, str] = {
    "mm_processor_kwargs": "--trust-request-mm-kwargs",
    "media_io_kwargs": "--trust-request-mm-kwargs",
    "chat_template": "--trust-request-chat-template",
}
_PROMPTS = frozenset(("prompt", "content", "image_files", "audio"))
# The end of a reason that says nothing against a request: a server may take it.
NOT_MODELLED = "is not modelled"


class BadRequest(ValueError):  # noqa: N818 - a value in flight, turned into `Skipped`
    """The line is no chat request; the message says where."""


class UnknownPart(BadRequest):
    """A part of a type that is not read here; the installed vLLM may know it."""

    def __init__(self, kind: object, where: str) -> None:
        super().__init__(f"{where}: a part of type {kind} {NOT_MODELLED}")
        self.kind = kind


def parse_line(line: bytes) -> tuple[ChatRequest, float | None]:
    """The request that one line holds, and the time in seconds at which it was sent, None if it
    does not say. Raises `BadRequest`.
    """
    if len(line) > LONGEST_LINE_BYTES:
        raise BadRequest(f"line of more than {LONGEST_LINE_BYTES >> 20} MiB")
    # A look through a whole line takes as long as a tenth of its parsing.
    if len(line) > _MOST_VALUES and sum(map(line.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise BadRequest(f"line of more than {_MOST_VALUES:,} values")
    try:
        # `json.loads` would take bytes of other encodings, too, and lone surrogates in all of them.
        data = json.loads(line.decode())
        body, sent_s = _open_envelopes(data) if isinstance(data, dict) else (data, None)
        if b"\\" in line and (b"\\ud" in line or b"\\uD" in line):
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise BadRequest("not UTF-8") from error
    except UnicodeEncodeError as error:
        raise BadRequest("not Unicode: half of a surrogate pair") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("not a chat request: an object is required")
    endpoint = ""
    if "messages" not in body and _is_responses(body):
        body, endpoint = _chat_of_responses(body), "/v1/responses"
    messages = _messages_of(body)
    row = messages is not body.get("messages")
    columns = (*_COLUMNS, OFFLINE, *_PROMPTS)
    body = {name: value for name, value in body.items() if name not in columns}
    for name, flag in _UNTRUSTED.items():
        if body.get(name) or (name == "chat_template" and body.get(name) is not None):
            raise BadRequest(f"{name} in a request, which vLLM refuses without {flag}")
    return ChatRequest.of_body({**body, "messages": messages}, endpoint, row=row), sent_s


def _open_envelopes(line: dict[str, Any]) -> tuple[dict[str, Any], float | None]:
    """The request in a line, and when it was sent: the outermost envelope that says so."""
    found = _envelopes(line) or [line]
    times = (seconds_of(one.get(name)) for one in found for name in _TIME_FIELDS)
    body = {**_mapping(found[-1].get(_PARAMETERS)), **found[-1]}
    if "messages" in body:
        body["messages"] = _unpack_json(body["messages"])
    return body, next((time for time in times if time is not None), None)


def _envelopes(line: Mapping[str, Any], deep: int = 4) -> list[Mapping[str, Any]]:
    """From the line to the request in it; empty where there is none."""
    if _unpack_json(line.get("messages")) or _is_responses(line):
        return [line]
    for name in _ENVELOPES if deep else ():
        if found := _envelopes(_mapping(line.get(name)), deep - 1):
            return [line, *found]
    return []


def _mapping(value: object) -> Mapping[str, Any]:
    found = _unpack_json(value)
    return found if isinstance(found, dict) else {}


def _unpack_json(value: object) -> object:
    """What a string holds that is JSON; all else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def seconds_of(given: object) -> float | None:
    """A number of seconds, or a time of ISO 8601, of UTC without a zone. None for others."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        seconds = float(given)
    except OverflowError:
        return None
    except ValueError:
        try:
            moment = datetime.fromisoformat(str(given))
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return seconds if math.isfinite(seconds) else None


def _bad(where: str, what: str) -> BadRequest:
    return BadRequest(f"not a chat request: {where}: {what}")


# Columns of media beside a prompt or a chat, as training sets and vLLM's benchmarks name them
# (`CustomDataset` and its kin in vllm/benchmarks/datasets/datasets.py, 0.32).
_COLUMNS: Mapping[str, Modality] = {
    **dict.fromkeys(("image", "images", "image_files"), "image"),
    **dict.fromkeys(("video", "videos"), "video"),
    **dict.fromkeys(("audio", "audios"), "audio"),
}
# As `LLM.generate` takes them, by modality.
OFFLINE = "multi_modal_data"
_MARK = re.compile("<(image|video|audio)>")


def _messages_of(body: Mapping[str, Any]) -> list[Message]:
    """The chat in a line, with the media of its columns in it. Raises `BadRequest`."""
    alone = "messages" not in body
    if not alone:
        messages = body["messages"]
    elif isinstance(body.get("content"), list):
        # vLLM's custom_image has a part type of its own.
        parts = [_part_of_custom(part) for part in body["content"]]
        messages = ChatRequest.of_user(parts).messages
    elif isinstance(prompt := body.get("prompt", ""), str) and body.keys() & _PROMPTS:
        messages = ChatRequest.of_user([text_part(prompt)] if "prompt" in body else []).messages
    else:
        raise _bad("messages", "Field required")
    _check_messages(messages)
    columns = {name: body[name] for name in _COLUMNS if body.get(name)}
    if isinstance(voice := columns.get("audio"), dict) and "path" not in voice:
        # OpenAI's, for the answer.
        del columns["audio"]
    held = body.get(OFFLINE) or {}
    if not isinstance(held, Mapping) or held.keys() - _COLUMNS.keys():
        raise BadRequest(f"its media stand in `{OFFLINE}`, in a form that is not read")
    columns |= {f"{OFFLINE}.{name}": value for name, value in held.items()}
    return _with_columns(messages, columns, alone=alone) if columns else messages


def _part_of_custom(part: object) -> object:
    if isinstance(part, Mapping) and part.get("type") == "image":
        if not isinstance(part.get("image"), str):
            raise _bad("content.image", "a path or URL is required")
        return url_part("image_url", part["image"])
    return part


def _with_columns(
    messages: list[Message], columns: Mapping[str, object], *, alone: bool
) -> list[Message]:
    """With media at their marks, or, where a lone prompt has no marks, behind it."""
    found: dict[Modality, list[dict[str, Any]]] = {}
    for name, value in columns.items():
        modality = _COLUMNS[name.rpartition(".")[2]]
        listed = value if isinstance(value, list) else [value]
        named = [one.get("path") if isinstance(one, Mapping) else one for one in listed]
        urls = [url for url in named if isinstance(url, str)]
        if len(urls) < len(listed):
            raise BadRequest(f"its media stand in `{name}`, in a form that is not read")
        found.setdefault(modality, []).extend(url_part(PART_OF[modality], url) for url in urls)
    marks = Counter(_MARK.findall(ChatRequest(messages).text()))
    if alone and not marks:
        (message,) = messages
        content = [*message["content"], *itertools.chain.from_iterable(found.values())]
        return ChatRequest.of_user(content).messages
    for modality, parts in found.items():
        if marks[modality] != len(parts):
            raise BadRequest(
                f"{len(parts)} media in {' and '.join(f'`{name}`' for name in columns)} and "
                f"{marks[modality]} <{modality}> marks: it is not clear where they stand"
            )
    left = {str(modality): iter(parts) for modality, parts in found.items()}
    return [_marked(message, left) for message in messages]


def _marked(message: Message, left: Mapping[str, Iterator[dict[str, Any]]]) -> Message:
    content, made = message.get("content"), list[Any]()
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str) or not _MARK.search(text):
            made.append(part)
            continue
        for number, piece in enumerate(_MARK.split(text)):
            if number % 2:
                known = piece in left
                made.append(next(left[piece]) if known else text_part(f"<{piece}>"))
            elif piece:
                made.append(text_part(piece))
    return message if made == [content] else {**message, "content": made}


def _is_responses(line: Mapping[str, Any]) -> bool:
    given = line.get("input")
    return isinstance(given, list) and bool(given) and all(isinstance(one, dict) for one in given)


def _chat_of_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat that vLLM makes of a body of /v1/responses
    (`construct_input_messages`, vllm/entrypoints/openai/responses/utils.py, 0.32).
    """
    messages: list[Message] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for one in body["input"]:
        match one:
            case {"type": "function_call", "name": name, "arguments": arguments, **more}:
                function = {"name": name, "arguments": arguments}
                call = {"id": str(more.get("call_id")), "type": "function", "function": function}
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            case {"type": "function_call_output", "output": output, **more}:
                answer = {"tool_call_id": str(more.get("call_id")), "content": _chat_parts(output)}
                messages.append({"role": "tool", **answer})
            case {"type": "reasoning"}:
                continue
            case {"role": role, "content": content}:
                messages.append({"role": role, "content": _chat_parts(content)})
            case _:
                raise BadRequest(f"input of type {one.get('type')} {NOT_MODELLED}")
    made = {"messages": messages, "max_tokens": body.get("max_output_tokens")}
    tools = [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
        for tool in body.get("tools") or ()
        if isinstance(tool, Mapping)
    ]
    return {**made, **({"tools": tools} if tools else {})}


def _chat_parts(content: object) -> object:
    if not isinstance(content, list):
        return content
    made = list[object]()
    for part in content:
        match part:
            case {"type": "input_text" | "output_text", "text": text}:
                made.append(text_part(text))
            case {"type": "input_image", "image_url": str() as url}:
                made.append(url_part("image_url", url))
            case _:
                made.append(part)
    return made


# Of which vLLM has OpenAI's own types of messages, too.
OPENAI_ROLES = {"user", "assistant", "system", "developer"}


def _check_messages(messages: object) -> None:
    """Raises `BadRequest` where they cannot be read; vLLM's own types are `Grammar`'s."""
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "a list of one message at least is required")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad(f"messages.{number}", "a role is required")
        content = message.get("content")
        if content == {} and message["role"] in OPENAI_ROLES:
            # Those types go through whatever can be gone through.
            content = message["content"] = []
        if content is not None and not isinstance(content, str | list):
            raise _bad(f"{number}.content", "text or a list of parts is required")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            _check_part(part, f"{number}.content.{place}")


def _check_part(part: object, where: str) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, dict) or not isinstance(part.get("type"), str | None):
        raise _bad(where, "a part is text, or an object whose type is text")
    if (medium := medium_of(part)) is not None:
        name, url = medium
        given = part.get(name)
        named = given.get("url") if isinstance(given, dict) else given
        if not url and named is None and part.get("uuid") is not None:
            raise BadRequest(f"a uuid without its data {NOT_MODELLED}")
        if not url or not isinstance(named, str | None):
            raise _bad(f"{where}.{name}", "a URL is required")
    elif part.get("type") in ("input_audio", "input_image") or part.get("type") in PART_OF.values():
        raise _bad(f"{where}.{part['type']}", "its data are required")
    elif part.get("type") not in TEXT_FIELDS:
        named = "tool_reference" if "tool_reference" in part else None
        raise UnknownPart(part.get("type") or named, where)
