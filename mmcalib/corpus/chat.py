"""One line of a requests file as text, checked where it enters: OpenAI chat messages.

Read are `{"messages": [...]}`, the same in the envelope of a batch file, a proxy or LiteLLM, and a
line of vLLM's custom benchmarks, `{"prompt": ..., "image_files": [...]}`. Fields that do not bear
on media or text are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from mmcalib.corpus.asking import fields_of
from mmcalib.corpus.content_parts import UrlType, text_part
from mmcalib.corpus.custom import is_custom, messages_of
from mmcalib.corpus.sent import TIME_FIELDS, seconds_of

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
