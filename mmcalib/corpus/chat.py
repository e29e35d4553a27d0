"""OpenAI chat requests: their media, text and need of context; the protocol of their sources."""

from __future__ import annotations

import hashlib
import itertools
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

from pydantic import TypeAdapter, ValidationError

from mmcalib.domain.items import Item, RequestText, Skipped
from mmcalib.domain.shapes import Modality

Message = dict[str, Any]
_INT = TypeAdapter(int)

# Audio has a second type, `input_audio`, which carries bytes instead of a URL.
UrlType = Literal["image_url", "video_url", "audio_url"]
PART_OF: Mapping[Modality, UrlType] = {
    "image": "image_url",
    "video": "video_url",
    "audio": "audio_url",
}
MODALITY_OF: Mapping[str, Modality] = {part: modality for modality, part in PART_OF.items()}
# Part type -> the field from which vLLM takes the part's text.
TEXT_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    **{kind: kind for kind in ("refusal", "thinking")},
}
# vLLM drops parts of these types if they have no text.
WORDLESS = ("text", "refusal")

# Fields that vLLM passes to template or tokenizer, with the values that have no effect
# (`build_chat_params`, vllm/entrypoints/openai/chat_completion/protocol.py, 0.32).
_TEMPLATE_FIELDS: Mapping[str, tuple[object, ...]] = {
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "documents": (None,),
    "reasoning_effort": (None,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "truncate_prompt_tokens": (None,),
}
# The first one present counts, as in `build_tok_params`.
_ANSWER_FIELDS = ("max_completion_tokens", "max_tokens")
_LEAST_FIELD = "min_tokens"
_KEPT_FIELDS = (*_TEMPLATE_FIELDS, "tools", "tool_choice", *_ANSWER_FIELDS, _LEAST_FIELD)

# vLLM passes each tool to the template with all its fields, the missing ones as null
# (`ChatCompletionToolsParam.model_dump` in the same file).
_ADDED_TOOL_BYTES = 200


def text_part(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def url_part(part_type: UrlType, url: str) -> dict[str, Any]:
    return {"type": part_type, part_type: {"url": url}}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request in OpenAI's format; its messages were checked when they were read.

    `fields` are those that affect the length of the prompt or answer, `others` the rest of the
    body. `endpoint` is where it was sent, if not to chat completions, and `sent` its fields there,
    with only its system messages. With `row`, mmcalib built it from a data set's row: nobody sent
    it. If its text is `given` by length, its words stand for others. `loose` items are no request.
    """

    messages: list[Message]
    fields: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict, compare=False)
    endpoint: str = field(default="", compare=False)
    row: bool = field(default=False, compare=False)
    given: RequestText | None = field(default=None, compare=False)
    loose: bool = field(default=False, compare=False)
    sent: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of_body(cls, body: Mapping[str, Any], endpoint: str = "", *, row: bool = False) -> Self:
        fields = {name: body[name] for name in _KEPT_FIELDS if body.get(name) is not None}
        others = {name: body[name] for name in body if name not in ("messages", *fields)}
        return cls(body["messages"], fields, others, endpoint, row)

    @classmethod
    def of_user(cls, content: str | list[Any]) -> Self:
        return cls([{"role": "user", "content": content}])

    def media(self) -> list[tuple[UrlType, str]]:
        """Return part type and URL of each medium, in order; inline audio becomes a `data:` URL."""
        return [medium for part in self._parts() if (medium := medium_of(part))]

    def uuid_media(self) -> Iterator[tuple[str, tuple[UrlType, str]]]:
        """Yield the uuid under which vLLM caches a medium, and the medium."""
        for part in self._parts():
            uuid = part.get("uuid") if isinstance(part, Mapping) else None
            if uuid is not None and (medium := medium_of(part)):
                yield str(uuid), medium

    def items(self) -> Counter[Modality]:
        return Counter(MODALITY_OF[part_type] for part_type, _ in self.media())

    def text(self) -> str:
        """Return the text of all parts, joined by line breaks."""
        return "\n".join(words for part in self._parts() if (words := _words(part)) is not None)

    def replace_media(self, urls: Iterable[str]) -> ChatRequest:
        """Return the request with `urls` in place of those of `media`."""
        left = iter(urls)
        return self._replace_parts(lambda part_type: url_part(part_type, next(left)))

    def strip_media(self) -> ChatRequest:
        """Return the request with a uuid for each medium, so that vLLM loads none."""
        return self._replace_parts(lambda kind: {"type": kind, kind: None, "uuid": "mmcalib"})

    def digest(self) -> str:
        """Hash of everything but the media; requests with equal digests have equal text tokens."""
        text = json.dumps([self.strip_media().messages, self.fields], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def measure_context(self) -> RequestText:
        """Measure what the request needs of the context, media excluded."""
        if self.given:
            return self.given
        tools = self.fields.get("tools")
        tools = tools if isinstance(tools, list) else []
        return RequestText(
            messages=len(self.messages),
            text_bytes=sum(map(_message_bytes, self.messages)),
            tool_bytes=_json_bytes(tools) + _ADDED_TOOL_BYTES * len(tools) if tools else 0,
            answer_tokens=self.answer_tokens,
            plain=self.is_plain,
            least_answer_tokens=_tokens(self.fields.get(_LEAST_FIELD)) or 0,
            alternates=self.alternates,
        )

    @property
    def alternates(self) -> bool:
        """True if users and assistants take turns, after at most one system message."""
        roles = [message.get("role") for message in self.messages]
        turns = roles[roles[:1] == ["system"] :]
        expected = itertools.cycle(("user", "assistant"))
        return all(role == next_ for role, next_ in zip(turns, expected, strict=False))

    @property
    def answer_tokens(self) -> int | None:
        """Answer length that the request sets, in tokens; None if it sets none."""
        values = (self.fields.get(name) for name in _ANSWER_FIELDS)
        return _tokens(next((value for value in values if value is not None), None))

    @property
    def is_plain(self) -> bool:
        """True if the template gets only tools and messages of text and media."""
        idle = all(self.fields.get(n) in (None, *values) for n, values in _TEMPLATE_FIELDS.items())
        return idle and all(map(_is_usual, self._parts()))

    @property
    def kept_tokens(self) -> int | None:
        """Tokens to which vLLM truncates the prompt; None if it does not, -1 for the context."""
        return _tokens(self.fields.get("truncate_prompt_tokens"), least=-1)

    def _parts(self) -> Iterable[object]:
        for message in self.messages:
            content = message.get("content")
            yield from content if isinstance(content, list) else (content,)

    def _replace_parts(self, part_of: Callable[[UrlType], dict[str, Any]]) -> ChatRequest:
        messages = []
        for message in map(dict, self.messages):
            if isinstance(content := message.get("content"), list):
                message["content"] = [
                    part_of(medium[0]) if (medium := medium_of(part)) else part for part in content
                ]
            messages.append(message)
        return ChatRequest(messages, self.fields, given=self.given, loose=self.loose)


# For prompts of which only the origin is kept.
_NO_REQUEST = ChatRequest([])


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request with its media located: `items` in order.

    `request` names them by `file://` URL, or by the item's own URL, so that it can be replayed.
    `origin` is file and line (`requests.jsonl:7`). `doubt` names what mmcalib does not model in it.
    `by_path`: it named a file by its path, which no server takes.
    """

    origin: str
    items: tuple[Item, ...] = ()
    request: ChatRequest = field(default=_NO_REQUEST, hash=False)
    doubt: str = ""
    body_bytes: int = field(default=0, compare=False)
    by_path: bool = field(default=False, compare=False)


class Source(Protocol):
    """Media files, requests that name them, or both. Each call starts over in the same order."""

    def items(self) -> Iterator[Item | Skipped]:
        """Yield every media file once, and `Skipped` for files that cannot be media."""

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Yield every request; `Skipped.path` is the request's origin."""


@dataclass(frozen=True, slots=True)
class Text:
    """A request without media, its prompt's origin, and when it was sent (None if unknown)."""

    request: ChatRequest
    origin: str = ""
    sent_s: float | None = None


def medium_of(part: object) -> tuple[UrlType, str] | None:
    """Return part type and URL of a medium (empty if its media were stripped); None for text. As
    `_parse_chat_message_content_mm_part` does in vllm/renderers/chat_utils.py (0.32).
    """
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type")
    if kind == "input_image":
        kind = "image_url"
    elif kind is None or part.get("uuid") is not None:
        kind = next((name for name in (*MODALITY_OF, "input_audio") if name in part), kind)
    value = part.get(str(kind))
    match kind:
        case "image_url" | "video_url" | "audio_url":
            url = value.get("url") if isinstance(value, Mapping) else value
            return kind, str(url or "")
        case "input_audio" if isinstance(value, Mapping) and isinstance(value.get("data"), str):
            return "audio_url", f"data:audio/{value.get('format', 'wav')};base64,{value['data']}"
    return None


def _text_value(part: Mapping[str, Any]) -> object:
    return part.get(TEXT_FIELDS.get(str(part.get("type")), "text"))


def _words(part: object) -> str | None:
    """Return the text of a part; None for media."""
    if isinstance(part, Mapping) and not medium_of(part):
        return str(_text_value(part) or "")
    return part if isinstance(part, str) else None


def _is_usual(part: object) -> bool:
    """True for media and strings; as text, vLLM also accepts numbers and lists."""
    if not isinstance(part, Mapping) or part.get("type") not in TEXT_FIELDS:
        return True
    words = _text_value(part)
    return isinstance(words, str) or (words is None and part.get("type") in WORDLESS)


def read_as(adapter: TypeAdapter[Any], value: object) -> Any:
    """Parse as pydantic does, which takes "7" and 7.0 for a number too; None for other values."""
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return None


def _tokens(value: object, least: int = 0) -> int | None:
    number = read_as(_INT, value)
    return None if number is None else max(least, number)


def _message_bytes(message: Message) -> int:
    """Count every field, since a template may write it, and a line break after each part."""
    total = 0
    for name, value in message.items():
        if value is None:
            continue
        if name == "content":
            parts = value if isinstance(value, list) else [value]
            total += sum(text_bytes(_words(part) or "") + 1 for part in parts)
        elif isinstance(value, str):
            total += text_bytes(value)
        else:
            total += _json_bytes(value)
    return total


def _json_bytes(value: object) -> int:
    """Bytes of the longest form that a template's `tojson` writes: escaped, indented by four, and
    with a tool call's arguments also as the object to which vLLM parses them.
    """
    size = len(json.dumps(value, indent=4))
    if isinstance(value, list):
        for call in value:
            function = call.get("function") if isinstance(call, Mapping) else None
            arguments = function.get("arguments") if isinstance(function, Mapping) else None
            if isinstance(arguments, str):
                try:
                    size += len(json.dumps(json.loads(arguments), indent=4))
                except (ValueError, RecursionError):
                    continue
    return size


def text_bytes(text: str) -> int:
    """UTF-8 bytes of `text` or its NFC form, which many tokenizers use, whichever is longer."""
    if text.isascii():
        return len(text)
    plain = len(text.encode(errors="replace"))
    if unicodedata.is_normalized("NFC", text):
        return plain
    return max(plain, len(unicodedata.normalize("NFC", text).encode(errors="replace")))
