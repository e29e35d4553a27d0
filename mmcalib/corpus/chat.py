"""Chat requests: parse, what they ask for.

One line of a requests file as text, checked where it enters: OpenAI chat messages.

Read are `{"messages": [...]}`, the same in the envelope of a batch file, a proxy or LiteLLM, and a
line of vLLM's custom benchmarks, `{"prompt": ..., "image_files": [...]}`. Fields that do not bear
on media or text are ignored.

Requests as vLLM's benchmarks read them: `vllm bench serve --dataset-name custom_image`.

A line has a `prompt`, with `image_files` or `audio`, or the `content` of one message
(`CustomDataset` and its kin in vllm/benchmarks/datasets/datasets.py, 0.32).
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from mmcalib.corpus.content_parts import PART_OF, UrlType, text_part, url_part
from mmcalib.domain.items import Asked, Prompt

# Fields that vLLM hands to the template or the tokenizer (`build_chat_params`, `build_tok_params`
# in vllm/entrypoints/openai/chat_completion/protocol.py, 0.32), with the values that change
# nothing.
_TEMPLATE_FIELDS: Mapping[str, tuple[object, ...]] = {
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "documents": (None,),
    "reasoning_effort": (None,),
    "response_format": (None,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "truncate_prompt_tokens": (None,),
}
# The first that is given is meant, as in `build_tok_params`.
_ANSWER_FIELDS = ("max_completion_tokens", "max_tokens")
_LEAST_FIELD = "min_tokens"
# What decides the prompt's length, and is kept for whoever asks again.
KEPT = (*_TEMPLATE_FIELDS, "tools", "tool_choice", *_ANSWER_FIELDS, _LEAST_FIELD)

# vLLM gives templates each tool with all its fields, those that nobody wrote as null
# (`ChatCompletionToolsParam.model_dump` in the same file).
_ADDED_TOOL_BYTES = 200

Message = Mapping[str, Any]


def fields_of(request: Mapping[str, Any]) -> dict[str, object]:
    """Of a request's fields those that bear on its length, without messages."""
    return {name: request[name] for name in KEPT if request.get(name) is not None}


def asked(messages: Sequence[Message], fields: Mapping[str, Any]) -> Asked:
    """Of messages as OpenAI writes them, checked before."""
    tools = fields.get("tools")
    tools = tools if isinstance(tools, list) else []
    return Asked(
        messages=len(messages),
        text_bytes=sum(map(_message_bytes, messages)),
        tool_bytes=_json_bytes(tools) + _ADDED_TOOL_BYTES * len(tools) if tools else 0,
        answer_tokens=_answer_tokens(fields),
        plain=is_plain(fields),
        least_answer_tokens=_tokens(fields.get(_LEAST_FIELD)) or 0,
    )


def is_plain(fields: Mapping[str, Any]) -> bool:
    """Whether the template gets no more than messages and tools."""
    return all(fields.get(n) in (None, *idle) for n, idle in _TEMPLATE_FIELDS.items())


def asked_by(prompt: Prompt) -> Asked:
    """What the prompt asks, where its source has not said so."""
    return prompt.asked or asked(prompt.messages, prompt.fields)


def answer_by(prompt: Prompt) -> int | None:
    """The tokens that it asks for; its messages need not be read for that."""
    return prompt.asked.answer_tokens if prompt.asked else _answer_tokens(prompt.fields)


def _answer_tokens(fields: Mapping[str, Any]) -> int | None:
    return _tokens(next((fields[n] for n in _ANSWER_FIELDS if fields.get(n) is not None), None))


def _tokens(given: object) -> int | None:
    return max(0, given) if isinstance(given, int) and not isinstance(given, bool) else None


def _message_bytes(message: Message) -> int:
    """Every field may be written by a template; the words of each part end with a line break."""
    total = 0
    for name, value in message.items():
        if value is None:
            continue
        if name == "content":
            parts = value if isinstance(value, list) else [value]
            total += sum(map(_part_bytes, parts))
        elif isinstance(value, str):
            total += text_bytes(value)
        else:
            total += _json_bytes(value)
    return total


def _part_bytes(part: object) -> int:
    if isinstance(part, str):
        return text_bytes(part) + 1
    if not isinstance(part, Mapping) or str(part.get("type", "")).endswith(("_url", "audio")):
        return 1
    words = (part.get(name) for name in ("text", "refusal", "thinking"))
    return sum(text_bytes(text) for text in words if isinstance(text, str)) + 1


def _json_bytes(value: object) -> int:
    """At the longest that `tojson` of a template writes it: escaped, and indented by four. vLLM
    gives templates the arguments of a tool call as an object, not as the text that it was.
    """
    whole = len(json.dumps(value, indent=4))
    if isinstance(value, list):
        for call in value:
            function = call.get("function") if isinstance(call, Mapping) else None
            given = function.get("arguments") if isinstance(function, Mapping) else None
            if isinstance(given, str):
                try:
                    whole += len(json.dumps(json.loads(given), indent=4))
                except (ValueError, RecursionError):
                    continue
    return whole


def text_bytes(text: str) -> int:
    """UTF-8 bytes, before or after the normal form C that many tokenizers bring it to: U+1D160 of
    four bytes has twelve then.
    """
    if text.isascii():
        return len(text)
    plain = len(text.encode(errors="replace"))
    if unicodedata.is_normalized("NFC", text):
        return plain
    return max(plain, len(unicodedata.normalize("NFC", text).encode(errors="replace")))


def bare(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with a name in place of each medium, which vLLM takes without loading one."""
    made = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = [_bare_part(part) for part in content]
        made.append({**message, "content": content} if "content" in message else dict(message))
    return made


def digest(messages: Sequence[Message], fields: Mapping[str, Any]) -> str:
    """The same for requests whose text takes the same: all is told but which media they name."""
    text = json.dumps([bare(messages), fields], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _bare_part(part: object) -> object:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "input_audio":
        kind = PART_OF["audio"]
    if kind in PART_OF.values():
        return {"type": kind, kind: None, "uuid": "mmcalib"}
    return part


# As the traces that vLLM's benchmarks replay name it, by default (`TimedTrace` in
# vllm/benchmarks/datasets/datasets.py, 0.32), and as LiteLLM does.
TIME_FIELDS: Final = ("timestamp", "startTime")


def seconds_of(given: object) -> float | None:
    """A number of seconds, or a time of ISO 8601, of UTC without a zone. None for others."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        seconds = float(given)
    except OverflowError:
        return None
    except ValueError:
        return _of_iso(str(given))
    return seconds if math.isfinite(seconds) else None


def _of_iso(written: str) -> float | None:
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return zoned.timestamp()


class _CustomImage(BaseModel):
    type: Literal["image"]
    image: str


class _Content(BaseModel):
    content: list[dict[str, Any]] = Field(min_length=1)

    def parts(self) -> Iterable[dict[str, object]]:
        for part in self.content:
            if part.get("type") == "image":
                yield url_part(PART_OF["image"], _CustomImage.model_validate(part).image)
            else:
                yield part


class _Images(BaseModel):
    prompt: str
    image_files: list[str] = Field(min_length=1)

    def parts(self) -> Iterable[dict[str, object]]:
        return [
            text_part(self.prompt),
            *(url_part(PART_OF["image"], file) for file in self.image_files),
        ]


class _CustomAudio(BaseModel):
    prompt: str = ""
    audio: str

    def parts(self) -> Iterable[dict[str, object]]:
        return [text_part(self.prompt), url_part(PART_OF["audio"], self.audio)]


class _Words(BaseModel):
    prompt: str

    def parts(self) -> Iterable[dict[str, object]]:
        return [text_part(self.prompt)]


# A line is the first of these whose field it has.
_BY_FIELD: Mapping[str, type[_Content | _Images | _CustomAudio | _Words]] = {
    "content": _Content,
    "image_files": _Images,
    "audio": _CustomAudio,
    "prompt": _Words,
}


def is_custom(line: Mapping[str, object]) -> bool:
    """Whether it has a field of theirs, and none of a chat request."""
    return not line.keys() & {"messages", "body"} and bool(line.keys() & _BY_FIELD.keys())


def messages_of(line: Mapping[str, object]) -> list[dict[str, object]]:
    """The chat that vLLM makes of it: text first, then the media. Raises pydantic's errors."""
    kind = next(kind for field, kind in _BY_FIELD.items() if field in line)
    return [{"role": "user", "content": list(kind.model_validate(line).parts())}]


# vLLM's spelling of the content parts that hold words (vllm/renderers/chat_utils.py, 0.32).
TextType = Literal["text", "input_text", "output_text", "refusal", "thinking"]

# Inline media of up to 36 MiB, because base64 makes four bytes of three. A line is held in memory
# some five times over while it is read.
LONGEST_LINE_BYTES = 48 << 20

# Where batch files, proxies and LiteLLM put the body of a request; it may be JSON in a string.
_ENVELOPES = (
    *("body", "request", "request_body", "payload"),
    *("standard_logging_object", "proxy_server_request"),
)
# LiteLLM keeps a request's other fields beside its messages.
_PARAMETERS = "model_parameters"

# Commas and brackets, of which base64 has none. Each may be a value of a hundred times its length.
_MOST_VALUES = 200_000


class BadRequest(ValueError):  # noqa: N818 - a value in flight, turned into `Skipped`
    """The line is no chat request; the message says where."""


class _Text(BaseModel):
    """Words, in the field that vLLM names after some of the types."""

    type: TextType
    text: str = ""
    refusal: str = ""
    thinking: str = ""

    @property
    def words(self) -> str:
        return self.text or self.refusal or self.thinking


class _Url(BaseModel):
    url: str


_AnyUrl = Annotated[
    _Url, BeforeValidator(lambda given: {"url": given} if isinstance(given, str) else given)
]


class _Image(BaseModel):
    type: Literal["image_url"]
    image_url: _AnyUrl


class _Video(BaseModel):
    type: Literal["video_url"]
    video_url: _AnyUrl


class _Audio(BaseModel):
    type: Literal["audio_url"]
    audio_url: _AnyUrl


class _Sound(BaseModel):
    data: str
    format: str = "wav"


class _InlineAudio(BaseModel):
    type: Literal["input_audio"]
    input_audio: _Sound


_Part = Annotated[_Text | _Image | _Video | _Audio | _InlineAudio, Field(discriminator="type")]


def _as_parts(content: object) -> object:
    """A bare string where a text part is meant, and nothing at all, are allowed by OpenAI."""
    if content is None:
        return []
    listed = [content] if isinstance(content, str) else content
    if not isinstance(listed, list):
        return listed
    return [text_part(part) if isinstance(part, str) else part for part in listed]


class ChatMessage(BaseModel):
    """One turn of the conversation, its content always a list of parts."""

    role: str
    content: Annotated[list[_Part], BeforeValidator(_as_parts)] = Field(default_factory=list)

    @property
    def words(self) -> list[str]:
        return [part.words for part in self.content if isinstance(part, _Text)]

    @property
    def media(self) -> list[tuple[UrlType, str] | None]:
        """Per part its type and URL, None for words. Inline audio becomes a `data:` URL."""
        return [_media(part) for part in self.content]


def _media(part: _Text | _Image | _Video | _Audio | _InlineAudio) -> tuple[UrlType, str] | None:
    match part:
        case _Image():
            return "image_url", part.image_url.url
        case _Video():
            return "video_url", part.video_url.url
        case _Audio():
            return "audio_url", part.audio_url.url
        case _InlineAudio():
            sound = part.input_audio
            return "audio_url", f"data:audio/{sound.format};base64,{sound.data}"
    return None


class _Chat(BaseModel):
    messages: list[dict[str, object]] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request: its messages checked, and the same as `written`; `fields` are those of its other
    fields that bear on the length of its prompt or answer. `sent_s` is as of `Text`.
    """

    messages: list[ChatMessage]
    written: list[dict[str, object]]
    fields: dict[str, object]
    sent_s: float | None = None


_MESSAGES = TypeAdapter(list[ChatMessage])

# A server refuses these unless it is started with --trust-request-mm-kwargs, which voids every cap
# (vllm/entrypoints/generate/base/protocol.py, 0.32).
_UNTRUSTED = ("mm_processor_kwargs", "media_io_kwargs")
# OpenAI's own, and all that vLLM's types let through in a message of nothing but sound: it then
# matches none of the union of `ChatCompletionRequest.messages` (0.32). Beside a text any will do.
_SOUND_FORMATS = ("wav", "mp3")


def parse_line(line: bytes) -> ChatRequest:
    """The request that one line holds. Raises `BadRequest`."""
    if len(line) > LONGEST_LINE_BYTES:
        raise BadRequest(f"line of more than {LONGEST_LINE_BYTES >> 20} MiB")
    # A look through a whole line takes as long as a tenth of its parsing.
    if len(line) > _MOST_VALUES and sum(map(line.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise BadRequest(f"line of more than {_MOST_VALUES:,} values")
    try:
        # `json.loads` would take bytes of other encodings, too, and lone surrogates in all of them.
        data = json.loads(line.decode())
        body, sent_s = _opened(data) if isinstance(data, dict) else (data, None)
        if b"\\" in line and (b"\\ud" in line or b"\\uD" in line):
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise BadRequest("not UTF-8") from error
    except UnicodeEncodeError as error:
        raise BadRequest("not Unicode: half of a surrogate pair") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON: {error}") from error
    try:
        if isinstance(body, dict) and is_custom(body):
            written = messages_of(body)
        else:
            written = _Chat.model_validate(body).messages
        messages = _MESSAGES.validate_python(written)
        request = ChatRequest(messages, written, fields_of(body), sent_s)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        said = f"{where}: {first['msg']}" if where else first["msg"]
        raise BadRequest(f"not a chat request: {said}") from error
    if why := _refused(request.messages, body):
        raise BadRequest(why)
    return request


def _opened(line: dict[str, Any]) -> tuple[dict[str, Any], float | None]:
    """The request in a line, and when it was sent: the outermost envelope that says so."""
    found = _envelopes(line) or [line]
    times = (seconds_of(one.get(name)) for one in found for name in TIME_FIELDS)
    body = {**_mapping(found[-1].get(_PARAMETERS)), **found[-1]}
    if "messages" in body:
        body["messages"] = _unpacked(body["messages"])
    return body, next((time for time in times if time is not None), None)


def _envelopes(line: Mapping[str, Any], deep: int = 4) -> list[Mapping[str, Any]]:
    """From the line to the request in it; empty where there is none."""
    if _unpacked(line.get("messages")):
        return [line]
    for name in _ENVELOPES if deep else ():
        if found := _envelopes(_mapping(line.get(name)), deep - 1):
            return [line, *found]
    return []


def _mapping(value: object) -> Mapping[str, Any]:
    found = _unpacked(value)
    return found if isinstance(found, dict) else {}


def _unpacked(value: object) -> object:
    """What a string holds that is JSON; all else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _refused(messages: list[ChatMessage], body: Mapping[str, object]) -> str:
    """Why vLLM refuses a request that is well-formed; empty where it does not."""
    for name in _UNTRUSTED:
        if body.get(name):
            return f"{name} in a request, which vLLM refuses without --trust-request-mm-kwargs"
    for message in messages:
        sounds = [part.input_audio for part in message.content if isinstance(part, _InlineAudio)]
        odd = next((one.format for one in sounds if one.format not in _SOUND_FORMATS), None)
        if odd is not None and len(sounds) == len(message.content):
            return f"input_audio of format {odd} in a message without text, which vLLM refuses"
    return ""
