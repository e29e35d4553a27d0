"""The messages and tools of a chat request as templates get them from vLLM.

Facts of 0.32: `parse_chat_messages` in vllm/renderers/chat_utils.py, and `ChatCompletionRequest` in
vllm/entrypoints/openai/chat_completion/protocol.py. What is written in an unusual way is not
guessed at, but `Uncounted`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mmcalib.corpus.content_parts import MODALITY_OF
from mmcalib.domain.shapes import Modality
from mmcalib.texts.recipe import Content, Uncounted

# The field that holds the words of a part, by its type.
_WORDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA: Mapping[str, Modality] = {**MODALITY_OF, "input_audio": "audio"}
# Dropped from system turns by vLLM.
_DROPPED = "x-anthropic-billing-header"

Message = Mapping[str, Any]
Part = dict[str, str]


def conversation(
    messages: Sequence[Message], content: Content, placeholders: Mapping[Modality, str]
) -> list[dict[str, Any]]:
    """The turns, and in them what stands for items. Raises `Uncounted`."""
    return [_turn(message, content, placeholders) for message in messages]


def _turn(
    message: Message, content: Content, placeholders: Mapping[Modality, str]
) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise Uncounted("a message without a role")
    parts = _parts(message)
    if role == "system" and any(p.get("text", "").startswith(_DROPPED) for p in parts):
        raise Uncounted(f"a system message that begins with {_DROPPED}")
    turn: dict[str, Any] = {"role": role}
    if content == "openai" and not (role == "tool" and all(p["type"] == "text" for p in parts)):
        turn["content"] = parts
    elif content == "openai":
        turn["content"] = "\n".join(part["text"] for part in parts)
    else:
        turn["content"] = _joined(parts, placeholders)
    if role == "assistant":
        turn |= _answered(message)
    elif role == "tool" and "tool_call_id" in message:
        turn["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            turn[name] = message[name]
    if role == "developer":
        turn["tools"] = message.get("tools")
    return turn


def _parts(message: Message) -> list[Part]:
    given = message.get("content", [])
    if given is None and message.get("role") != "assistant":
        raise Uncounted("a message without content")
    given = [given] if isinstance(given, str) else given or []
    if not isinstance(given, list):
        raise Uncounted("a content that is neither text nor a list")
    return [_part(part) for part in given]


def _part(part: object) -> Part:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise Uncounted("a part of a message without a type")
    if kind in _MEDIA and part.keys() <= {"type", kind, "uuid"}:
        return {"type": _MEDIA[kind]}
    words = part.get(_WORDS.get(kind, ""))
    if not isinstance(words, str) or len(part) != 2:
        raise Uncounted(f"a part of type {kind} with fields of its own")
    return {"type": "text", "text": words}


def _joined(parts: Sequence[Part], placeholders: Mapping[Modality, str]) -> str:
    """Placeholders that the text does not have stand before it, those of a kind together."""
    text = "\n".join(part["text"] for part in parts if part.get("text"))
    wanted: Counter[Modality] = Counter()
    for part in parts:
        if part["type"] != "text":
            wanted[part["type"]] += 1  # type: ignore[index]
    missing = []
    for modality, count in wanted.items():
        if modality not in placeholders:
            raise Uncounted(f"{modality} in a text")
        placeholder = placeholders[modality]
        left = count - text.count(placeholder) if placeholder else 0
        if left < 0:
            raise Uncounted("a text with more placeholders than items")
        missing += [placeholder] * left
    return "\n".join([*missing, text] if text else missing)


def _answered(message: Message) -> dict[str, Any]:
    """What an assistant's turn has beside its content."""
    more: dict[str, Any] = {}
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise Uncounted("tool_calls that are no list")
        more["tool_calls"] = [_call(call) for call in calls]
    thought = message.get("reasoning")
    if thought is None:
        thought = message.get("reasoning_content")
    if thought is not None:
        if not isinstance(thought, str):
            raise Uncounted("reasoning that is no text")
        more["reasoning"] = more["reasoning_content"] = thought
    return more


def _call(call: object) -> dict[str, Any]:
    """With its fields in the order in which vLLM's own types have them."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or call.keys() != {"id", "type", "function"}:
        raise Uncounted("a tool call with fields of its own")
    if not isinstance(function, Mapping) or function.keys() != {"name", "arguments"}:
        raise Uncounted("a tool call with fields of its own")
    if call["type"] != "function" or not all(
        isinstance(text, str) for text in (call["id"], *function.values())
    ):
        raise Uncounted("a tool call that is none of a function")
    named = {"arguments": _arguments(function["arguments"]), "name": function["name"]}
    return {"id": call["id"], "function": named, "type": "function"}


def _arguments(text: str) -> dict[str, Any]:
    """What is no JSON object counts as an empty one."""
    try:
        found = json.loads(text) if text else {}
    except RecursionError as error:
        raise Uncounted("arguments that are nested too deep") from error
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def described(tools: object) -> list[dict[str, Any]] | None:
    """Tools with all the fields that vLLM writes of them. Raises `Uncounted`."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise Uncounted("tools that are no list, or an empty one")
    return [_tool(tool) for tool in tools]


def _tool(tool: object) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
        raise Uncounted("a tool without a function")
    name, about = function.get("name"), function.get("description")
    takes, strict = function.get("parameters"), function.get("strict")
    if (
        tool.get("type", "function") != "function"
        or not isinstance(name, str)
        or not isinstance(about, str | None)
        or not isinstance(takes, dict | None)
        or not isinstance(strict, bool | None)
        or "defer_loading" in {*tool, *function}
    ):
        raise Uncounted("a tool with odd fields")
    named = {"name": name, "description": about, "parameters": takes}
    return {"type": "function", "function": named | ({} if strict is None else {"strict": strict})}
