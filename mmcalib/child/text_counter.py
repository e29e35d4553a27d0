"""Counting the text of chat requests by transformers' tokenizer and chat template.

As a process: `python -m mmcalib.child.text_counter PIPE LIMIT`. A template, the patterns of a
tokenizer and the texts may come from somebody else, and may take for ever.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mmcalib.corpus.chat import MODALITY_OF, TEXT_FIELDS, WORDLESS, ChatRequest, medium_of
from mmcalib.domain.items import TextCounting
from mmcalib.domain.shapes import Modality
from mmcalib.processes import confine, serve_parent

# Fields of a request that vLLM gives to templates, before those of `chat_template_kwargs`, and of
# these both that nothing else gives.
_GIVEN = ("add_generation_prompt", "continue_final_message", "documents", "reasoning_effort")
_GROWS = {"add_generation_prompt": True, "continue_final_message": False}
# pydantic reads them of "no" and 1, too.
_SWITCHES = TypeAdapter(dict[str, bool])
_ROLES = ("system", "user", "assistant")
# vLLM drops such a line of a system message (vllm/renderers/chat_utils.py:2039, 0.32).
_BILLING = "x-anthropic-billing-header"


class Uncounted(ValueError):  # noqa: N818 - a value in flight: the text stays bounded
    """The text cannot be counted here; the message says why."""


class Unrendered(Uncounted):
    """The template itself refuses the text, and so will vLLM."""


class TextCounter:
    """By the tokenizer of a checkpoint folder, or of one in the hub cache, and by a template, its
    own for one, which gets the `content` of a message as its parts ("openai") or as one text
    ("string"). Raises `Uncounted` without a template, ImportError without transformers, and what
    transformers raises.
    """

    def __init__(self, model: str, content: str, counting: TextCounting) -> None:
        from transformers import AutoTokenizer

        self._content = content

        self._tokenizer = AutoTokenizer.from_pretrained(
            model, local_files_only=True, trust_remote_code=False
        )
        own = counting.template or self._tokenizer.chat_template
        if not isinstance(own or counting.processor, str):
            raise Uncounted("it has no chat template, or several")
        self._template, self._plain = own, counting.processor or own
        if any("strftime_now" in one for one in (own or "", self._plain)):
            raise Uncounted("its chat template reads the clock")

    def count(
        self, counting: TextCounting, request: ChatRequest, *, tokenise: bool = True
    ) -> int | None:
        """Tokens of the prompt that are not within the placeholder of an item, as vLLM's renderer
        makes it; without `tokenise` it is only rendered. Raises `Uncounted`.
        """
        fields, items = request.fields, request.items()
        switches = {n: fields[n] for n in (*_GROWS, "add_special_tokens") if n in fields}
        try:
            fields = fields | _SWITCHES.validate_python(switches)
        except ValidationError as error:
            raise Uncounted("fields of an unusual kind") from error
        plain = request.is_plain and not fields.get("tools")
        for one in request.messages:
            plain &= one.keys() == {"role", "content"} and one["role"] in _ROLES
        if not (plain or counting.fields):
            raise Uncounted("it gives the template more than messages")
        if request.kept_tokens is not None and (items or not request.kept_tokens):
            raise Uncounted("a prompt that is cut between its items, or to nothing")
        if missing := [m for m in items if m not in counting.around]:
            raise Uncounted(f"what {missing[0]} items add to a text is not known")
        turns = [_turn(message, self._content, counting.marks) for message in request.messages]
        tools = [_tool(tool) for tool in fields.get("tools") or ()]
        given = self._given(fields, counting.kwargs)
        from jinja2 import TemplateError

        try:
            prompt = self._tokenizer.apply_chat_template(
                turns,
                tools=tools or None,
                chat_template=self._template if tools else self._plain,
                tokenize=False,
                **given,
            )
        # Of what it takes together transformers says ValueError.
        except (TemplateError, ValueError) as error:
            raise Unrendered(f"the chat template refuses it: {error}") from error
        except Exception as error:
            raise Uncounted(f"the chat template fails: {error}") from error
        if not tokenise:
            return None
        special = fields.get("add_special_tokens", False)
        tokens = len(self._tokenizer.encode(prompt, add_special_tokens=special))
        return tokens + sum(counting.around[m] * count for m, count in items.items())

    def _given(self, fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """As `build_chat_params` merges them
        (vllm/entrypoints/openai/chat_completion/protocol.py, 0.32).
        """
        theirs = fields.get("chat_template_kwargs") or {}
        ours = _GROWS | {name: fields[name] for name in _GIVEN if name in fields}
        if fields.get("reasoning_effort") and "enable_thinking" not in theirs:
            ours["enable_thinking"] = fields["reasoning_effort"] != "none"
        taken = inspect.signature(self._tokenizer.apply_chat_template).parameters.keys()
        if theirs.keys() & taken - ours.keys():
            raise Uncounted("fields of an unusual kind")
        given = {**theirs, **{k: v for k, v in ours.items() if v not in (None, "auto")}}
        return {**defaults, **{k: v for k, v in given.items() if v not in (None, "auto")}}


def _turn(
    message: Mapping[str, Any], content_format: str, marks: Mapping[Modality, str]
) -> dict[str, Any]:
    """As vLLM 0.32 gives it to templates (`parse_chat_messages` in vllm/renderers/chat_utils.py).
    What is written in an unusual way is not guessed at.
    """
    role, content = message["role"], message.get("content")
    odd = message.keys() & {"reasoning", "reasoning_content", "task", "tools", "name"}
    if role not in (*_ROLES, "tool") or any(message[name] is not None for name in odd):
        raise Uncounted("a message of an unusual kind")
    parts = [*filter(None, map(_part, [content] if isinstance(content, str) else content or []))]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if role == "system" and any(str(text).startswith(_BILLING) for text in texts):
        raise Uncounted("a header that vLLM drops")
    made: dict[str, Any] = {"role": role, "content": parts}
    try:
        if content_format == "string":
            kinds = [part["type"] for part in parts if part["type"] != "text"]
            made["content"] = _joined([text for text in texts if text], kinds, marks)
        elif role == "tool" and len(texts) == len(parts):
            made["content"] = "\n".join(texts)
    except TypeError as error:
        raise Unrendered(f"texts are joined, of which one is none: {error}") from error
    if role == "assistant" and message.get("tool_calls"):
        made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    if role == "tool" and "tool_call_id" in message:
        made["tool_call_id"] = message["tool_call_id"]
    return made


def _joined(texts: Sequence[str], kinds: Sequence[Any], marks: Mapping[Modality, str]) -> str:
    """As `_get_full_multimodal_text_prompt` puts marks that nobody wrote before the text."""
    words = "\n".join(texts)
    if any(kind not in marks for kind in kinds):
        raise Uncounted("items in a template of texts")
    missing = list[str]()
    for mark, count in Counter(marks[kind] for kind in kinds).items():
        if (left := count - words.count(mark)) < 0:
            raise Unrendered(f"more {mark} in a text than the message has items")
        missing += [mark] * left
    return "\n".join([*missing, words] if words else missing)


def _call(call: Any) -> dict[str, Any]:
    """With its arguments as an object, and in the order of pydantic's fields."""
    if call.keys() == {"id", "type", "function"}:
        match call["function"]:
            case {"name": str(name), "arguments": str(given), **more} if not more:
                try:
                    found = json.loads(given or "{}")
                except ValueError:
                    found = {}
                arguments = found if isinstance(found, dict) else {}
                function = {"arguments": arguments, "name": name}
                return {"id": call["id"], "function": function, "type": call["type"]}
    raise Uncounted("a call of an unusual kind")


def _tool(tool: Any) -> dict[str, Any]:
    """With all fields that vLLM's type has, and no others (`ChatCompletionToolsParam`)."""
    match tool:
        case {"type": "function", "function": {"name": str(), **more} as function, **others}:
            if not others and isinstance(more.get("strict"), bool | None):
                made = {n: function.get(n) for n in ("name", "description", "parameters")}
                if more.get("strict") is not None:
                    made["strict"] = more["strict"]
                if "defer_loading" not in more:
                    return {"type": "function", "function": made}
    raise Uncounted("a tool of an unusual kind")


def _part(part: Any) -> dict[str, Any] | None:
    """None for what vLLM drops; texts may be of any type."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if (medium := medium_of(part)) is not None:
        return {"type": str(MODALITY_OF[medium[0]])}
    kind = part.get("type")
    field = TEXT_FIELDS.get(kind)
    if field is None or part.keys() - {"type", field}:
        raise Uncounted("a part of an unusual kind")
    words = part.get(field)
    return None if words is None and kind in WORDLESS else {"type": "text", "text": words}


def serve(pipe: Connection, memory_bytes: int) -> None:
    """The first message is the model, how its texts are counted and what its template takes,
    answered by why they cannot be, or by nothing; each that follows is a request and whether to
    tokenise it, answered by its tokens, by None where it is not counted, or by why its template
    refuses it.
    """
    # transformers takes five seconds to import with torch, and a second without.
    sys.modules["torch"] = None  # type: ignore[assignment]
    confine(memory_bytes)
    model, counting, content = pipe.recv()
    try:
        counter = TextCounter(model, content, counting)
    except ImportError:
        pipe.send("transformers is not installed: pip install 'mmcalib[check]'")
        return
    except Exception as error:  # noqa: BLE001 - whatever is wrong with its files
        pipe.send(f"{model}: {' '.join(str(error).split())[:200] or type(error).__name__}")
        return
    pipe.send("")
    while True:
        request, tokenise = pipe.recv()
        found: int | str | None
        try:
            found = counter.count(counting, request, tokenise=tokenise)
        except Unrendered as error:
            found = " ".join(str(error).split())[:200]
        except Uncounted:
            found = None
        pipe.send(found)


if __name__ == "__main__":
    serve_parent(serve)
