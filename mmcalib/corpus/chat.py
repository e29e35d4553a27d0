"""A chat request as OpenAI writes it: its media, its text, and what it asks of the context."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError

from mmcalib.domain.items import Asked, Item
from mmcalib.domain.shapes import Modality

Message = dict[str, Any]
_INT = TypeAdapter(int)

# Sound has a second type, `input_audio`, which holds the bytes and no URL.
UrlType = Literal["image_url", "video_url", "audio_url"]
PART_OF: Mapping[Modality, UrlType] = {
    "image": "image_url",
    "video": "video_url",
    "audio": "audio_url",
}
MODALITY_OF: Mapping[str, Modality] = {part: modality for modality, part in PART_OF.items()}
# The field in which vLLM looks for the words of a part, by its type.
TEXT_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    **{kind: kind for kind in ("refusal", "thinking")},
}
# Parts of these types that have no words are dropped.
WORDLESS = ("text", "refusal")

# Fields that vLLM hands to the template or the tokenizer (`build_chat_params`, `build_tok_params`
# in vllm/entrypoints/openai/chat_completion/protocol.py, 0.32), with the values that change
# nothing.
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
# The first that is given is meant, as in `build_tok_params`.
_ANSWER_FIELDS = ("max_completion_tokens", "max_tokens")
_LEAST_FIELD = "min_tokens"
_KEPT_FIELDS = (*_TEMPLATE_FIELDS, "tools", "tool_choice", *_ANSWER_FIELDS, _LEAST_FIELD)

# vLLM gives templates each tool with all its fields, those that nobody wrote as null
# (`ChatCompletionToolsParam.model_dump` in the same file).
_ADDED_TOOL_BYTES = 200


def text_part(words: str) -> dict[str, Any]:
    """A content part of words."""
    return {"type": "text", "text": words}


def url_part(part_type: UrlType, url: str) -> dict[str, Any]:
    """A content part that names a medium by its URL, or a path."""
    return {"type": part_type, part_type: {"url": url}}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat request: its messages as OpenAI writes them, checked where they were read, and those
    of its other fields that bear on the length of its prompt or answer. As it was read it has the
    `others`, too, and the `endpoint` whose body it was, if not that of chat. One that was made of a
    `row` was not sent as it stands.
    """

    messages: list[Message]
    fields: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict, compare=False)
    endpoint: str = field(default="", compare=False)
    row: bool = field(default=False, compare=False)

    @classmethod
    def of_body(cls, body: Mapping[str, Any], endpoint: str = "", *, row: bool = False) -> Self:
        """The request in the body of an HTTP request."""
        fields = {name: body[name] for name in _KEPT_FIELDS if body.get(name) is not None}
        others = {name: body[name] for name in body if name not in ("messages", *fields)}
        return cls(body["messages"], fields, others, endpoint, row)

    @classmethod
    def of_user(cls, content: str | list[Any]) -> Self:
        """One turn of the user's."""
        return cls([{"role": "user", "content": content}])

    def media(self) -> list[tuple[UrlType, str]]:
        """The part type and URL of each medium, in order. Inline audio becomes a `data:` URL."""
        return [medium for part in self._parts() if (medium := medium_of(part))]

    def named_media(self) -> Iterator[tuple[str, tuple[UrlType, str]]]:
        """The media that vLLM keeps under a uuid."""
        for part in self._parts():
            uuid = part.get("uuid") if isinstance(part, Mapping) else None
            if uuid is not None and (medium := medium_of(part)):
                yield str(uuid), medium

    def items(self) -> Counter[Modality]:
        """The number of media of each modality."""
        return Counter(MODALITY_OF[part_type] for part_type, _ in self.media())

    def text(self) -> str:
        """The words of all parts, joined by line breaks."""
        return "\n".join(words for part in self._parts() if (words := _words(part)) is not None)

    def replace_media(self, urls: Iterable[str]) -> ChatRequest:
        """The request with these URLs in place of those of `media`."""
        left = iter(urls)
        return self._replace_parts(lambda part_type: url_part(part_type, next(left)))

    def bare(self) -> ChatRequest:
        """The request with a name in place of each medium, which vLLM takes without loading one."""
        return self._replace_parts(
            lambda part_type: {"type": part_type, part_type: None, "uuid": "mmcalib"}
        )

    def digest(self) -> str:
        """Equal for requests whose text takes the same: which media they name does not count."""
        text = json.dumps([self.bare().messages, self.fields], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def asked(self) -> Asked:
        """What it asks of the context; media count as nothing."""
        tools = self.fields.get("tools")
        tools = tools if isinstance(tools, list) else []
        return Asked(
            messages=len(self.messages),
            text_bytes=sum(map(_message_bytes, self.messages)),
            tool_bytes=_json_bytes(tools) + _ADDED_TOOL_BYTES * len(tools) if tools else 0,
            answer_tokens=self.answer_tokens,
            plain=self.is_plain,
            least_answer_tokens=_tokens(self.fields.get(_LEAST_FIELD)) or 0,
        )

    @property
    def answer_tokens(self) -> int | None:
        """The length of the answer that it asks for; None if it does not say."""
        given = (self.fields.get(name) for name in _ANSWER_FIELDS)
        return _tokens(next((tokens for tokens in given if tokens is not None), None))

    @property
    def is_plain(self) -> bool:
        """Whether the template gets no more than messages of texts and media, and tools."""
        given = self.fields
        idle = all(given.get(n) in (None, *values) for n, values in _TEMPLATE_FIELDS.items())
        return idle and all(map(_is_usual, self._parts()))

    @property
    def kept_tokens(self) -> int | None:
        """To how many its prompt is cut, if at all; -1: to what the context holds."""
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
        return ChatRequest(messages, self.fields)


# For prompts of which no more than the origin is kept.
_NO_REQUEST = ChatRequest([])


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request whose media were looked for: `items` in order, and the request with every media URL
    made one of `file://` or of the item's own, so that it can be replayed. `origin` says where it
    stands (`requests.jsonl:7`). `doubt` says what of it nobody modelled.
    """

    origin: str
    items: tuple[Item, ...] = ()
    request: ChatRequest = field(default=_NO_REQUEST, hash=False)
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A bare request, the origin of its prompt, and the time in seconds at which it was sent, None
    if it does not say.
    """

    request: ChatRequest
    origin: str = ""
    sent_s: float | None = None


def medium_of(part: object) -> tuple[UrlType, str] | None:
    """The part type and URL of a medium, empty in a bare request; None for words. As vLLM finds it
    (`_parse_chat_message_content_mm_part` in vllm/renderers/chat_utils.py, 0.32).
    """
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type")
    if kind == "input_image":
        kind = "image_url"
    elif kind is None or part.get("uuid") is not None:
        kind = next((name for name in (*MODALITY_OF, "input_audio") if name in part), kind)
    given = part.get(str(kind))
    match kind:
        case "image_url" | "video_url" | "audio_url":
            url = given.get("url") if isinstance(given, Mapping) else given
            return kind, str(url or "")
        case "input_audio" if isinstance(given, Mapping) and isinstance(given.get("data"), str):
            form = given.get("format", "wav")
            return "audio_url", f"data:audio/{form};base64,{given['data']}"
    return None


def _told(part: Mapping[str, Any]) -> object:
    return part.get(TEXT_FIELDS.get(str(part.get("type")), "text"))


def _words(part: object) -> str | None:
    """The words of a part, which stand in the field that vLLM names after some of the types; None
    for media.
    """
    if isinstance(part, Mapping) and not medium_of(part):
        return str(_told(part) or "")
    return part if isinstance(part, str) else None


def _is_usual(part: object) -> bool:
    """Whether it is a medium or a text: vLLM takes numbers and lists for texts, too."""
    if not isinstance(part, Mapping) or part.get("type") not in TEXT_FIELDS:
        return True
    words = _told(part)
    return isinstance(words, str) or (words is None and part.get("type") in WORDLESS)


def _tokens(given: object, least: int = 0) -> int | None:
    """As pydantic reads it: of "7" and 7.0, too."""
    try:
        return max(least, _INT.validate_python(given))
    except ValidationError:
        return None


def _message_bytes(message: Message) -> int:
    """Every field may be written by a template; the words of each part end with a line break."""
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
