"""What a request asks of the context, read from the request as written."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from mmcalib.corpus.content_parts import PART_OF
from mmcalib.domain.asked import Asked
from mmcalib.domain.items import Prompt

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
