"""One line of a requests file as text, checked where it enters: OpenAI chat messages.

Read are `{"messages": [...]}`, the same in the envelope of a batch file, a proxy or LiteLLM, and a
line of vLLM's custom benchmarks, `{"prompt": ..., "image_files": [...]}`. Fields that do not bear
on media or text are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from mmcalib.corpus.chat import PART_OF, ChatRequest, Message, text_part, url_part

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

# A server refuses these unless it is started with --trust-request-mm-kwargs, which voids every cap
# (vllm/entrypoints/generate/base/protocol.py, 0.32).
_UNTRUSTED = ("mm_processor_kwargs", "media_io_kwargs")
# OpenAI's own, and all that vLLM's types let through in a message of nothing but sound: it then
# matches none of the union of `ChatCompletionRequest.messages` (0.32). Beside a text any will do.
_SOUND_FORMATS = ("wav", "mp3")


class BadRequest(ValueError):  # noqa: N818 - a value in flight, turned into `Skipped`
    """The line is no chat request; the message says where."""


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
    try:
        if isinstance(body, dict) and (messages := _messages_of_custom(body)):
            body = {**body, "messages": messages}
        _MESSAGES.validate_python(_Chat.model_validate(body).messages)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        said = f"{where}: {first['msg']}" if where else first["msg"]
        raise BadRequest(f"not a chat request: {said}") from error
    _refuse_as_server(body)
    return ChatRequest.of_body(body), sent_s


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
    if _unpack_json(line.get("messages")):
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


def _refuse_as_server(body: Mapping[str, Any]) -> None:
    """Raises `BadRequest` for a well-formed request that vLLM refuses."""
    for name in _UNTRUSTED:
        if body.get(name):
            why = "which vLLM refuses without --trust-request-mm-kwargs"
            raise BadRequest(f"{name} in a request, {why}")
    for message in body["messages"]:
        parts = message.get("content")
        formats = [
            part["input_audio"].get("format", "wav")
            for part in (parts if isinstance(parts, list) else ())
            if isinstance(part, dict) and part["type"] == "input_audio"
        ]
        odd = next((one for one in formats if one not in _SOUND_FORMATS), None)
        if odd is not None and len(formats) == len(parts):
            why = "in a message without text, which vLLM refuses"
            raise BadRequest(f"input_audio of format {odd} {why}")


# Requests as vLLM's benchmarks read them: `vllm bench serve --dataset-name custom_image`. A line
# has a `prompt`, with `image_files` or `audio`, or the `content` of one message (`CustomDataset`
# and its kin in vllm/benchmarks/datasets/datasets.py, 0.32).
class _CustomImage(BaseModel):
    type: Literal["image"]
    image: str


class _Content(BaseModel):
    content: list[dict[str, Any]] = Field(min_length=1)

    def parts(self) -> Iterable[dict[str, Any]]:
        for part in self.content:
            if part.get("type") == "image":
                yield url_part(PART_OF["image"], _CustomImage.model_validate(part).image)
            else:
                yield part


class _Images(BaseModel):
    prompt: str
    image_files: list[str] = Field(min_length=1)

    def parts(self) -> Iterable[dict[str, Any]]:
        return [text_part(self.prompt), *(url_part("image_url", one) for one in self.image_files)]


class _CustomAudio(BaseModel):
    prompt: str = ""
    audio: str

    def parts(self) -> Iterable[dict[str, Any]]:
        return [text_part(self.prompt), url_part("audio_url", self.audio)]


class _Words(BaseModel):
    prompt: str

    def parts(self) -> Iterable[dict[str, Any]]:
        return [text_part(self.prompt)]


# A line is the first of these whose field it has.
_BY_FIELD: Mapping[str, type[_Content | _Images | _CustomAudio | _Words]] = {
    "content": _Content,
    "image_files": _Images,
    "audio": _CustomAudio,
    "prompt": _Words,
}


def _messages_of_custom(line: Mapping[str, object]) -> list[Message]:
    """The chat that vLLM makes of it: text first, then the media. Raises pydantic's errors. Empty
    for a line that has a field of a chat request, or none of theirs.
    """
    kind = next((kind for field, kind in _BY_FIELD.items() if field in line), None)
    if kind is None or line.keys() & {"messages", "body"}:
        return []
    return ChatRequest.of_user(list(kind.model_validate(line).parts())).messages


# What follows only says whether messages are well-formed.


class _Text(BaseModel):
    """Words, in the field that vLLM names after some of the types (vllm/renderers/chat_utils.py,
    0.32).
    """

    type: Literal["text", "input_text", "output_text", "refusal", "thinking"]
    text: str = ""
    refusal: str = ""
    thinking: str = ""


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


class _Message(BaseModel):
    role: str
    content: Annotated[list[_Part], BeforeValidator(_as_parts)] = Field(default_factory=list)


class _Chat(BaseModel):
    messages: list[dict[str, object]] = Field(min_length=1)


_MESSAGES = TypeAdapter(list[_Message])
