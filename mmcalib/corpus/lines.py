"""Parse and check one line of a requests file: OpenAI chat messages.

Accepts `{"messages": [...]}`, also in the envelope of a batch file, a proxy or a log; bodies of
/v1/responses and /v1/messages; rows of training sets with messages and media columns; and lines of
AIPerf, `{"text": ..., "images": [...]}`, and of vLLM's custom benchmarks and offline prompts,
`{"prompt": ..., "image_files": [...]}`, of ShareGPT; and lines of sizes, see `given`.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeGuard

from mmcalib.corpus.chat import (
    PART_OF,
    TEXT_FIELDS,
    ChatRequest,
    Message,
    medium_of,
    text_part,
    url_part,
)
from mmcalib.corpus.given import make_request, read_given
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.media.sniff import MEDIA_EXTENSIONS

Parsed = tuple[ChatRequest, float | None]
# Allows 36 MiB of media, as base64 takes a third more. Parsing takes about five times the memory.
LONGEST_LINE_BYTES = 48 << 20
# Commas and brackets, which base64 never has. Each may become a Python value of a hundred bytes.
_MAX_VALUES = 200_000

# Where batch files, proxies, LiteLLM, Langfuse and SageMaker put a request's body, or its JSON.
_ENVELOPES = (
    *("body", "params", "request", "request_body", "payload", "input"),
    *("standard_logging_object", "proxy_server_request", "captureData", "endpointInput", "data"),
)
# Where LiteLLM and Langfuse put a request's other fields.
_PARAMETERS = ("model_parameters", "modelParameters")
# The default name in traces for vLLM's benchmarks (`TimedTrace` in
# vllm/benchmarks/datasets/datasets.py, 0.32), and the names of LiteLLM, Helicone and SageMaker.
_TIME_FIELDS = ("timestamp", "startTime", "request_created_at", "inferenceTime")
# Where a batch file, a proxy and Helicone name the endpoint.
_ENDPOINT_FIELDS = ("url", "endpoint", "request_path", "path")
_CHAT_ENDPOINTS = ("chat/completions", "chat", "responses", "messages")
_ENDPOINT = re.compile(
    rf"(?:^|/)({'|'.join(_CHAT_ENDPOINTS)}|completions|embeddings?|embed|pooling|score|rerank"
    r"|rankings|classify|moderations|transcriptions|translations|speech|generations|edits"
    r"|count_tokens|tokenize)/?$"
)
_OTHER_ENDPOINT = re.compile(r"/v\d+/([\w./-]+?)/?\Z")
# Fields of AIPerf's own lines, whose times are in milliseconds.
_AIPERF = ("text", "texts", "turns")

# vLLM rejects these fields unless the server has the flag, which voids every cap
# (vllm/entrypoints/generate/base/protocol.py, 0.32).
_UNTRUSTED: Mapping[str, str] = {
    "mm_processor_kwargs": "--trust-request-mm-kwargs",
    "media_io_kwargs": "--trust-request-mm-kwargs",
    "chat_template": "--trust-request-chat-template",
}
_PROMPTS = frozenset(("prompt", "content", "image_files", "audio"))
# A reason that ends so leaves it open whether a server accepts the request.
NOT_MODELLED = "is not modelled"


class BadRequest(ValueError):  # noqa: N818 - a value in flight, turned into `Skipped`
    """The line is not a usable chat request, or a URL in it names no file; the message says why."""


class UnknownPart(BadRequest):
    """mmcalib does not read this type of part, but the installed vLLM may support it."""

    def __init__(self, kind: object, where: str) -> None:
        named = f"of type {kind}" if kind else "without a type"
        super().__init__(f"{where}: a part {named} {NOT_MODELLED}")
        self.kind = kind


def parse_line(line: bytes, origin: str = "", *, as_sent: bool = False) -> Parsed:
    """Return a request and its time in s, if any; `as_sent`: as servers do. Raises `BadRequest`."""
    try:
        if given := read_given(line):
            return make_request(given, origin), seconds_of(given.timestamp)
    except ValueError as error:
        raise BadRequest(str(error)) from error
    if len(line) > LONGEST_LINE_BYTES:
        raise BadRequest(f"line is longer than {LONGEST_LINE_BYTES >> 20} MiB")
    # Counting takes a tenth of the time of parsing.
    if len(line) > _MAX_VALUES and sum(map(line.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise BadRequest(f"line has more than {_MAX_VALUES:,} values")
    try:
        # Given bytes, `json.loads` would also accept other encodings and lone surrogates.
        data = json.loads(line.decode())
        body, sent_to, sent_s = _open_envelopes(data if isinstance(data, dict) else {})
        if b"\\" in line and (b"\\ud" in line or b"\\uD" in line):
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise BadRequest("not UTF-8") from error
    except UnicodeEncodeError as error:
        raise BadRequest("not Unicode: lone surrogate") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRequest("not a chat request: not a JSON object")
    if sent_to and sent_to not in _CHAT_ENDPOINTS:
        raise BadRequest(f"sent to the endpoint {sent_to}, which {NOT_MODELLED}")
    endpoint, sent = "", dict[str, Any]()
    if sent_to == "messages" or (not sent_to and _is_anthropic(body)):
        every = body["messages"] if isinstance(body.get("messages"), list) else []
        sent = {**body, "messages": [one for one in every if _mapping(one).get("role") == "system"]}
        body, endpoint = _chat_of_anthropic(body), "/v1/messages"
    elif sent_to == "responses" or ("messages" not in body and _is_responses(body)):
        body, endpoint = _chat_of_responses(body), "/v1/responses"
    messages = _messages_of(body, as_sent=as_sent)
    row = messages is not body.get("messages")
    columns = (*_COLUMNS, OFFLINE, *_PROMPTS, *_AIPERF, _SHAREGPT)
    body = {name: value for name, value in body.items() if name not in columns}
    for name in ("output_length", "output_tokens"):  # in traces, and in vLLM's benchmarks
        if name in body:
            body.setdefault("max_tokens", body[name])
    if not as_sent and isinstance(words := body.pop("system", None), str) and words:
        messages = [{"role": "system", "content": words}, *messages]
    for name, flag in _UNTRUSTED.items():
        if body.get(name) or (name == "chat_template" and body.get(name) is not None):
            raise BadRequest(f"vLLM rejects {name} in a request without {flag}")
    request = ChatRequest.of_body({**body, "messages": messages}, endpoint, row=row)
    if (row or not as_sent) and not request.media():
        cells = [(name, one) for name, value in request.others.items() for one in _cells(value)]
        unread = [name for name, one in cells if isinstance(one, str) and _MEDIUM.fullmatch(one)]
        unread += [n for one in messages for n in _COLUMNS if isinstance(one.get(n), str | list)]
        if unread:
            raise BadRequest(f"mmcalib does not read the media in `{unread[0]}`")
    return replace(request, sent=sent), sent_s


def _open_envelopes(line: dict[str, Any]) -> tuple[dict[str, Any], str, float | None]:
    """Return a line's request, its endpoint, and when it was sent by the outermost time field."""
    levels = _envelopes(line) or [line, *filter(None, [_mapping(line.get("body"))])]
    outer = [*levels, _mapping(line.get("eventMetadata"))]
    times = (seconds_of(one.get(name)) for one in outer for name in _TIME_FIELDS)
    sent_s = next((time for time in times if time is not None), None)
    places = (str(one.get(name)).partition("?")[0] for one in levels for name in _ENDPOINT_FIELDS)
    found = (_ENDPOINT.search(place) or _OTHER_ENDPOINT.match(place) for place in places)
    sent_to = next((match[1] for match in found if match), "")
    parameters = (_mapping(one.get(name)) for one in levels for name in _PARAMETERS)
    body = {k: v for one in (*parameters, levels[-1]) for k, v in one.items()}
    if "messages" in body:
        body["messages"] = _unpack_json(body["messages"])
    elif _is_langfuse(body):
        body["messages"] = _unpack_json(body.pop("input"))
    # As seconds, 1e11 is the year 5138.
    if sent_s is not None and (sent_s > 1e11 or body.keys() & {*_AIPERF}):
        sent_s /= 1000
    return body, sent_to, sent_s


def _envelopes(line: Mapping[str, Any], deep: int = 4) -> list[Mapping[str, Any]]:
    """Return the nested objects from the line down to its request; empty if it has none."""
    if _unpack_json(line.get("messages")) or _is_responses(line) or _is_langfuse(line):
        return [line]
    if line.get("encoding") == "BASE64":
        line = {**line, "data": base64.b64decode(str(line.get("data"))).decode()}
    for name in _ENVELOPES if deep else ():
        inner = _mapping(line.get(name))
        if inner and (levels := _envelopes(inner, deep - 1)):
            return [line, *levels]
    return []


def _mapping(value: object) -> Mapping[str, Any]:
    data = _unpack_json(value)
    return data if isinstance(data, dict) else {}


def _unpack_json(value: object) -> object:
    """Parse a string of JSON; return anything else unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def seconds_of(value: object) -> float | None:
    """Parse a number of seconds or an ISO 8601 time (UTC if it names no zone); None for others."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    with suppress(OverflowError, ValueError):
        try:
            seconds = float(value)
        except ValueError:
            moment = datetime.fromisoformat(str(value))
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return seconds if math.isfinite(seconds) else None
    return None


def _bad(where: str, what: str) -> BadRequest:
    return BadRequest(f"not a chat request: {where}: {what}")


# Media columns of training sets and of vLLM's benchmarks (`CustomDataset` and similar classes in
# vllm/benchmarks/datasets/datasets.py, 0.32).
_COLUMNS: Mapping[str, Modality] = {
    **dict.fromkeys(("image", "images", "image_files"), "image"),
    **dict.fromkeys(("video", "videos"), "video"),
    **dict.fromkeys(("audio", "audios"), "audio"),
}
# `LLM.generate` takes media in this field, by modality.
OFFLINE = "multi_modal_data"
_MARK = re.compile("<(image|video|audio)>")
# A path or URL of media.
_MEDIUM = re.compile(rf"data:(image|video|audio)/.*|\S+\.({'|'.join(MEDIA_EXTENSIONS)})", re.I)


def _messages_of(body: Mapping[str, Any], *, as_sent: bool = False) -> list[Message]:
    """Return a line's chat with the media of its columns inserted. Raises `BadRequest`."""
    is_prompt = "messages" not in body
    if not is_prompt:
        messages = body["messages"]
        if not as_sent and isinstance(messages, list):
            marks = any(body.get(name) for name in _COLUMNS)
            read = [_read_row_parts(message, marks=marks) for message in messages]
            messages = messages if read == messages else read
    elif _is_list_of_objects(turns := body.get("turns")):
        # The last of a session's requests repeats the turns before it, with answers.
        return [message for turn in turns for message in (*_messages_of(turn), _NO_ANSWER)][:-1]
    elif _is_list_of_objects(turns := body.get(_SHAREGPT)):
        roles = [_SPEAKERS.get(str(turn.get("from"))) for turn in turns]
        said = zip(roles, turns, strict=True)
        messages = [{"role": role, "content": turn.get("value")} for role, turn in said]
        # The last answers are what a server is asked for.
        while len(messages) > 1 and messages[-1]["role"] == "assistant":
            messages.pop()
    elif text := body.get("text") or body.get("texts"):
        messages = ChatRequest.of_user([text_part(str(one)) for one in _cells(text)]).messages
    elif isinstance(body.get("content"), list):
        messages = [_read_row_parts({"role": "user", "content": body["content"]})]
    elif isinstance(prompt := body.get("prompt", ""), str) and body.keys() & _PROMPTS:
        messages = ChatRequest.of_user([text_part(prompt)] if "prompt" in body else []).messages
    else:
        raise _bad("messages", f"missing; the fields are {', '.join([*body][:9]) or 'none'}")
    _check_messages(messages)
    chat = ChatRequest(messages)
    if as_sent and not is_prompt and not _MARK.search(chat.text()):
        return chat.messages
    columns = {name: body[name] for name in _COLUMNS if body.get(name)}
    if isinstance(voice := columns.get("audio"), dict) and "path" not in voice:
        # OpenAI's `audio` field sets the voice of the answer.
        del columns["audio"]
    offline = body.get(OFFLINE) or {}
    if not isinstance(offline, Mapping) or offline.keys() - _COLUMNS.keys():
        raise BadRequest(f"mmcalib cannot read the media in `{OFFLINE}`")
    columns |= {f"{OFFLINE}.{name}": value for name, value in offline.items()}
    return _insert_columns(messages, columns, is_prompt=is_prompt) if columns else messages


# The turns of a line of ShareGPT or LLaVA, and their speakers.
_SHAREGPT = "conversations"
_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "system": "system"}
_NO_ANSWER: Message = {"role": "assistant", "content": ""}


def _cells(value: object) -> list[Any]:
    """Return a column's values; AIPerf may put them into the `contents` of named objects."""
    cells = value if isinstance(value, list) else [value]
    inner = [one.get("contents") if isinstance(one, dict) else None for one in cells]
    pairs = zip(cells, inner, strict=True)
    return [each for one, its in pairs for each in (its if isinstance(its, list) else [one])]


def _read_row_parts(message: Any, *, marks: bool = False) -> Any:
    """Convert the parts of data sets that have a type of their own, as in vLLM's custom_image,
    `{"type": "image", "image": PATH}`; one without a path is a mark. Raises `BadRequest`.
    """
    content = message.get("content") if isinstance(message, dict) else None
    parts = list[object]()
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in MODALITIES:
            given = {n: v for n, v in part.items() if n != "type" and v is not None}
            source = next((given.pop(n) for n in (kind, "url", "path") if n in given), None)
            if given:
                raise BadRequest(f"{min(given)} in a part of type {kind} {NOT_MODELLED}")
            if not isinstance(source, str) and (source or not marks):
                raise _bad(f"content.{kind}", "must be a path or URL")
            part = url_part(PART_OF[kind], source) if source else text_part(f"<{kind}>")
        parts.append(part)
    return {**message, "content": parts} if parts else message


def _insert_columns(
    messages: list[Message], columns: Mapping[str, object], *, is_prompt: bool
) -> list[Message]:
    """Put media at their marks; without marks, append them to a prompt."""
    media: dict[Modality, list[dict[str, Any]]] = {}
    for name, value in columns.items():
        modality = _COLUMNS[name.rpartition(".")[2]]
        cells = _cells(value)
        names = [one.get("path") if isinstance(one, Mapping) else one for one in cells]
        urls = [url for url in names if isinstance(url, str)]
        if len(urls) < len(cells):
            raise BadRequest(f"mmcalib cannot read the media in `{name}`")
        media.setdefault(modality, []).extend(url_part(PART_OF[modality], url) for url in urls)
    marks = Counter(_MARK.findall(ChatRequest(messages).text()))
    if is_prompt and not marks:
        (message,) = messages
        content = [*message["content"], *itertools.chain.from_iterable(media.values())]
        return ChatRequest.of_user(content).messages
    for modality, parts in media.items():
        if marks[modality] != len(parts):
            raise BadRequest(
                f"{' and '.join(f'`{name}`' for name in columns)} and the text do not match: "
                f"{len(parts)} media, {marks[modality]} <{modality}> marks"
            )
    left = {str(modality): iter(parts) for modality, parts in media.items()}
    return [_replace_marks(message, left) for message in messages]


def _replace_marks(message: Message, left: Mapping[str, Iterator[dict[str, Any]]]) -> Message:
    content, parts = message.get("content"), list[Any]()
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str) or not _MARK.search(text):
            parts.append(part)
            continue
        for number, piece in enumerate(_MARK.split(text)):
            if number % 2:
                parts.append(next(left[piece]) if piece in left else text_part(f"<{piece}>"))
            elif piece:
                parts.append(text_part(piece))
    return message if parts == [content] else {**message, "content": parts}


def _is_list_of_objects(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _is_responses(line: Mapping[str, Any]) -> bool:
    return _is_list_of_objects(line.get("input"))


def _is_langfuse(line: Mapping[str, Any]) -> bool:
    """True for an observation whose input is the messages."""
    is_own = bool({"traceId", "modelParameters"} & line.keys())
    return is_own and isinstance(_unpack_json(line.get("input")), list)


_ANTHROPIC_ONLY = ("redacted_thinking", "tool_use", "tool_result", "document")


def _parts_of(message: Any) -> list[dict[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else message
    parts = content if isinstance(content, list) else [text_part(str(content or ""))]
    return [one for one in parts if isinstance(one, dict)]


def _is_anthropic(body: Mapping[str, Any]) -> bool:
    """True for what only a body of /v1/messages has."""
    messages = body.get("messages")
    parts = [one for m in messages for one in _parts_of(m)] if isinstance(messages, list) else []
    only = ("source" in one or one.get("type") in _ANTHROPIC_ONLY for one in parts)
    given = "anthropic_version" in body or isinstance(body.get("system"), list)
    return bool(parts) and (given or any(only))


# Fields of /v1/messages that vLLM copies to the chat; `metadata` has no effect.
_COPIED = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "cache_salt")
MESSAGES_FIELDS = frozenset(
    (*_COPIED, "messages", "system", "stop_sequences", "tools", "tool_choice", "metadata")
)
_TOOL_FIELDS = ("name", "description", "strict", "defer_loading")
_CHOICES = {"any": "required", "none": "none", "auto": "auto"}


def _chat_of_anthropic(body: dict[str, Any]) -> dict[str, Any]:
    """Convert a body of /v1/messages to a chat, as vLLM's `to_chat_completion_request` does for
    templates that want the system first (vllm/entrypoints/anthropic/serving.py, 0.32).
    """
    system, chat = _parts_of(body.get("system")), list[Message]()
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        role, content = _mapping(message).get("role"), _mapping(message).get("content")
        if role not in ("user", "assistant", "system") or not _is_anthropic_content(content):
            raise BadRequest("vLLM's /v1/messages takes user, assistant and system, with content")
        if role == "system":
            system += _parts_of(message)
        elif isinstance(content, list):
            chat += _turns_of_anthropic(role, content)
        else:
            chat.append({"role": role, "content": content})
    if words := "".join(t for t in _texts_of(system) if not t.startswith(BILLING)):
        chat.insert(0, {"role": "system", "content": words})
    fields = {name: body[name] for name in _COPIED if name in body}
    if "stop_sequences" in body:
        fields["stop"] = body["stop_sequences"]
    if tools := body.get("tools"):
        fields["tools"] = [_tool_of_anthropic(tool) for tool in tools if isinstance(tool, dict)]
    choice = _mapping(body.get("tool_choice"))
    if tools or choice.get("type") not in (None, "auto", "none"):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        fields["tool_choice"] = _CHOICES.get(str(choice.get("type", "auto")), named)
    return {"messages": chat, **fields}


def _is_anthropic_content(content: object) -> bool:
    """True for a string or objects, whose text is a string."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [one.get("text") or "" if isinstance(one, dict) else None for one in parts]
    return content is not None and all(isinstance(text, str) for text in texts)


def _turns_of_anthropic(role: str, parts: list[dict[str, Any]]) -> list[Message]:
    chat, shown, calls, thoughts = list[Message](), list[dict[str, Any]](), list[object](), ""
    for part in parts:
        match part:
            case {"type": "tool_result"} if role == "user":
                inner, call = _parts_of(part), {"tool_call_id": str(part.get("tool_use_id"))}
                if any(one.get("type") == "tool_reference" for one in inner):
                    raise BadRequest(f"a tool_reference {NOT_MODELLED}")
                chat.append({"role": "tool", **call, "content": "\n".join(_texts_of(inner))})
                if images := [_image_of(one) for one in inner if one.get("type") == "image"]:
                    chat.append({"role": "user", "content": images})
            case {"type": "tool_use"}:
                arguments = json.dumps(part.get("input") or {})
                calls.append(_tool_call(part.get("id"), part.get("name"), arguments))
            case {"type": "image"}:
                shown += [_image_of(part)] if part.get("source") else []
            case {"type": "text"}:
                shown += [text_part(part["text"])] if part.get("text") else []
            case {"type": "thinking" | "redacted_thinking" | "tool_reference"}:
                thoughts += str(part.get("thinking") or "")
            case {"type": "tool_result"}:
                raise BadRequest(f"a tool_result of the assistant {NOT_MODELLED}")
            case _:
                kind = part.get("type")
                raise BadRequest(f"vLLM's /v1/messages takes no part of type {kind}")
    content = shown[0]["text"] if len(shown) == 1 and shown[0]["type"] == "text" else shown
    turn = {"content": content, "tool_calls": calls, "reasoning": thoughts}
    if role != "user" or shown:
        chat.append({"role": role, **{name: value for name, value in turn.items() if value}})
    return chat


def _tool_of_anthropic(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: tool[name] for name in _TOOL_FIELDS if tool.get(name) is not None}
    schema = {"type": "object", **_mapping(tool.get("input_schema"))}
    return {"type": "function", "function": {**function, "parameters": schema}}


def _tool_call(name: object, function: object, arguments: object) -> dict[str, Any]:
    called = {"name": function, "arguments": arguments}
    return {"id": str(name), "type": "function", "function": called}


def _image_of(part: Mapping[str, Any]) -> dict[str, Any]:
    source = _mapping(part.get("source"))
    if source.get("type") == "url":
        return url_part("image_url", str(source.get("url", "")))
    kind, data = source.get("media_type", "image/jpeg"), source.get("data", "")
    return url_part("image_url", f"data:{kind};base64,{data}")


# Claude Code sends a hash that begins so; vLLM drops it from the text of a system message
# (vllm/renderers/chat_utils.py:2039, 0.32).
BILLING = "x-anthropic-billing-header"


def _texts_of(parts: list[dict[str, Any]]) -> list[str]:
    return [str(one.get("text") or "") for one in parts if one.get("type") == "text"]


def _chat_of_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a body of /v1/responses to a chat, as vLLM's `construct_input_messages` does
    (vllm/entrypoints/openai/responses/utils.py, 0.32).
    """
    if body.get("previous_response_id"):
        raise BadRequest(f"the history of previous_response_id {NOT_MODELLED}")
    messages: list[Message] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    if isinstance(items := body.get("input"), str):
        items = [{"role": "user", "content": items}]
    for one in items if isinstance(items, list) else ():
        match one:
            case {"type": "function_call", "name": name, "arguments": arguments, **more}:
                call = _tool_call(more.get("call_id"), name, arguments)
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            case {"type": "function_call_output", "output": output, **more}:
                answer = {"tool_call_id": str(more.get("call_id")), "content": _chat_parts(output)}
                messages.append({"role": "tool", **answer})
            case {"type": "reasoning"}:
                continue
            case {"role": role, "content": content}:
                messages.append({"role": role, "content": _chat_parts(content)})
            case _:
                raise BadRequest(f"input of type {_mapping(one).get('type')} {NOT_MODELLED}")
    tools = [
        {"type": "function", "function": {n: v for n, v in tool.items() if n != "type"}}
        for tool in _cells(body.get("tools"))
        if isinstance(tool, dict)
    ]
    most = body.get("max_output_tokens")
    return {"messages": messages, "max_tokens": most, "tools": tools or None}


def _chat_parts(content: object) -> object:
    match content:
        case list():
            return [_chat_parts(part) for part in content]
        case {"type": "input_text" | "output_text", "text": text}:
            return text_part(text)
        case {"type": "input_image", "image_url": str() as url}:
            return url_part("image_url", url)
    return content


# For these, vLLM also accepts OpenAI's own message types.
OPENAI_ROLES = {"user", "assistant", "system", "developer"}


def _check_messages(messages: object) -> None:
    """Raises `BadRequest` for unreadable messages; `Grammar` checks them against vLLM's types."""
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "must be a list of at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad(f"messages.{number}", "must have a role")
        content = message.get("content")
        if content == {} and message["role"] in OPENAI_ROLES:
            # OpenAI's types accept any iterable.
            content = message["content"] = []
        if content is not None and not isinstance(content, str | list):
            raise _bad(f"{number}.content", "must be text or a list of parts")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            _check_part(part, f"{number}.content.{place}")


def _check_part(part: object, where: str) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, dict) or not isinstance(part.get("type"), str | None):
        raise _bad(where, "must be text, or an object with a type")
    if (medium := medium_of(part)) is not None:
        name, url = medium
        value = part.get(name)
        source = value.get("url") if isinstance(value, dict) else value
        if not url and source is None and part.get("uuid") is not None:
            raise BadRequest(f"a uuid without data {NOT_MODELLED}")
        if not url or not isinstance(source, str | None):
            raise _bad(f"{where}.{name}", "must have a URL")
    elif part.get("type") in ("input_audio", "input_image") or part.get("type") in PART_OF.values():
        raise _bad(f"{where}.{part['type']}", "must have data")
    elif part.get("type") not in TEXT_FIELDS:
        kind = "tool_reference" if "tool_reference" in part else None
        raise UnknownPart(part.get("type") or kind, where)
