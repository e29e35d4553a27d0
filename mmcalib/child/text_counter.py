"""Count the text of chat requests with transformers' tokenizer and chat template.

It runs as a process, `python -m mmcalib.child.text_counter PIPE LIMIT`, because templates,
tokenizer patterns and texts are untrusted and may never finish.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mmcalib.corpus.chat import MODALITY_OF, TEXT_FIELDS, WORDLESS, ChatRequest, medium_of
from mmcalib.corpus.lines import BILLING, NOT_MODELLED
from mmcalib.domain.items import TextCounting
from mmcalib.domain.shapes import Modality
from mmcalib.processes import confine, serve_parent
from mmcalib.text import one_line

# Fields of a request that vLLM passes to templates; they win over `chat_template_kwargs`. The
# second constant has the defaults of two of them.
_PASSED = ("add_generation_prompt", "continue_final_message", "documents", "reasoning_effort")
_DEFAULTS = {"add_generation_prompt": True, "continue_final_message": False}
# pydantic also accepts "no" and 1.
_SWITCHES = TypeAdapter(dict[str, bool])
_ROLES = ("system", "user", "assistant")
# Fields of a part that vLLM keeps from templates (`_KNOWN_CONTENT_PART_FIELDS` in the same file).
_PART_FIELDS = frozenset(
    (
        *("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil"),
        *("image_url", "input_audio", "name", "prompt_cache_breakpoint", "refusal", "text"),
        *("thinking", "type", "uuid", "video_embeds", "video_url"),
    )
)


class Uncounted(ValueError):  # noqa: N818 - control flow, not a failure
    """mmcalib cannot count the text; the message has the reason."""


class Unrendered(Uncounted):
    """The template rejects the text or drops an item, so vLLM fails too."""


class Unseen(Uncounted):
    """mmcalib cannot render the text as vLLM does."""


class TextCounter:
    """Counts texts with the tokenizer and template of a checkpoint folder or cached hub model.

    `content`: the template gets a message as parts ("openai") or as one text ("string"). Raises
    `Uncounted` without a template, ImportError without transformers, and transformers' exceptions.
    """

    def __init__(self, model: str, content: str, counting: TextCounting) -> None:
        from transformers import AutoTokenizer

        self._content = content
        self._tokenizer = AutoTokenizer.from_pretrained(
            model, local_files_only=True, trust_remote_code=False
        )
        own = counting.template or self._tokenizer.chat_template
        if not isinstance(own or counting.processor, str):
            raise Uncounted("the model has no chat template, or several")
        self._template, self._plain = own, counting.processor or own
        both = f"{own}{self._plain}"
        self.reads_clock, self.rejects = "strftime_now" in both, "raise_exception" in both

    def count(
        self, counting: TextCounting, request: ChatRequest, *, tokenise: bool = True
    ) -> int | None:
        """Count the tokens of vLLM's prompt outside the placeholders of items. Raises `Uncounted`.

        Without `tokenise` it only renders the prompt and returns None.
        """
        prompt, items = self.render(counting, request), request.items()
        if not tokenise:
            return None
        if self.reads_clock:
            raise Uncounted("the chat template reads the clock")
        if request.kept_tokens == 0:
            raise Uncounted("the prompt is truncated completely")
        if missing := [m for m in items if m not in counting.around]:
            raise Uncounted(f"the text tokens around {missing[0]} items are unknown")
        special = _switches(request).get("add_special_tokens", False)
        tokens = len(self._tokenizer.encode(prompt, add_special_tokens=special))
        return tokens + sum(counting.around[m] * count for m, count in items.items())

    def render(self, counting: TextCounting, request: ChatRequest) -> str:
        """Render vLLM's prompt with its items unexpanded. Raises `Unrendered` and `Unseen`."""
        fields = request.fields | _switches(request)
        plain = request.is_plain and not fields.get("tools")
        for message in request.messages:
            plain &= message.keys() == {"role", "content"} and message["role"] in _ROLES
        if not (plain or counting.fields):
            raise Unseen("more than messages")
        turns = [_turn(message, self._content, counting.marks) for message in request.messages]
        tools = [_tool(tool) for tool in fields.get("tools") or ()]
        kwargs = self._template_kwargs(fields, counting.kwargs)
        prompt = self._apply(turns, tools, kwargs)
        for modality, count in request.items().items():
            mark = counting.written.get(modality)
            if not mark or (written := prompt.count(mark)) >= count:
                continue
            for role in dict.fromkeys(turn["role"] for turn in turns):
                bare = [_strip(t, modality, mark) if t["role"] == role else t for t in turns]
                if bare != turns and self._apply(bare, tools, kwargs).count(mark) == written:
                    where = f"the {modality} in the {role} message"
                    raise Unrendered(f"the chat template drops {where}")
            raise Unrendered(f"the chat template writes {written} of {count} {modality} items")
        return prompt

    def _apply(
        self, turns: list[dict[str, Any]], tools: list[dict[str, Any]], kwargs: Mapping[str, Any]
    ) -> str:
        template = (self._template if tools else self._plain) or ""
        roles = {turn["role"] for turn in turns}
        if "developer" in roles and not re.search("""(["'])developer\\1""", template):
            turns = _merge_system(turns)
        try:
            prompt: str = self._tokenizer.apply_chat_template(
                turns, tools=tools or None, chat_template=template, tokenize=False, **kwargs
            )
        except MemoryError as error:
            raise Uncounted("the prompt is larger than this process's memory") from error
        except Exception as error:
            # vLLM rejects the request for any exception (`safe_apply_chat_template`, 0.32).
            raise Unrendered(f"the chat template rejects it: {error}") from error
        return prompt

    def _template_kwargs(
        self, fields: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Merge them like `build_chat_params` (openai/chat_completion/protocol.py, 0.32)."""
        theirs = fields.get("chat_template_kwargs") or {}
        ours = _DEFAULTS | {name: fields[name] for name in _PASSED if name in fields}
        if fields.get("reasoning_effort") and "enable_thinking" not in theirs:
            ours["enable_thinking"] = fields["reasoning_effort"] != "none"
        reserved = inspect.signature(self._tokenizer.apply_chat_template).parameters.keys()
        if theirs.keys() & reserved - ours.keys():
            raise Unseen("unusual request fields")
        merged = {**theirs, **{k: v for k, v in ours.items() if v not in (None, "auto")}}
        return {**defaults, **{k: v for k, v in merged.items() if v not in (None, "auto")}}


def _switches(request: ChatRequest) -> dict[str, bool]:
    names = (*_DEFAULTS, "add_special_tokens")
    try:
        return _SWITCHES.validate_python({n: v for n, v in request.fields.items() if n in names})
    except ValidationError as error:
        raise Unseen("unusual request fields") from error


def _strip(turn: dict[str, Any], modality: Modality, mark: str) -> dict[str, Any]:
    content = turn["content"]
    if isinstance(content, str):
        return {**turn, "content": content.replace(mark, "")}
    return {**turn, "content": [part for part in content if part["type"] != modality]}


def _merge_system(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert developer messages for a template without them, as `safe_apply_chat_template` does
    (vllm/renderers/hf.py:802, 0.32): several system messages become the first one's text.
    """
    own = [{n: v for n, v in turn.items() if n != "tools"} for turn in turns]
    turns = [{**turn, "role": turn["role"].replace("developer", "system")} for turn in own]
    contents = [turn["content"] for turn in turns if turn["role"] == "system"]
    if turns[0]["role"] == "system" and len(contents) == 1:
        return turns
    texts = (
        one if isinstance(one, str) else "\n".join(str(p["text"]) for p in one if "text" in p)
        for one in contents
    )
    merged = {"role": "system", "content": "\n\n".join(filter(None, texts))}
    return [merged, *(turn for turn in turns if turn["role"] != "system")]


def _turn(
    message: Mapping[str, Any], content_format: str, marks: Mapping[Modality, str]
) -> dict[str, Any]:
    """Convert a message like vLLM (`parse_chat_messages`, renderers/chat_utils.py, 0.32)."""
    role, content = message["role"], message.get("content")
    parts = [*filter(None, map(_part, [content] if isinstance(content, str) else content or []))]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if role == "system" and any(str(text).startswith(BILLING) for text in texts):
        raise Unseen("a header that vLLM drops")
    turn: dict[str, Any] = {"role": role, "content": parts}
    try:
        if content_format == "string":
            kinds = [part["type"] for part in parts if part["type"] != "text"]
            turn["content"] = _join_parts([text for text in texts if text], kinds, marks)
        elif role == "tool" and len(texts) == len(parts):
            turn["content"] = "\n".join(texts)
    except TypeError as error:
        raise Unrendered(f"a text part is not a string: {error}") from error
    if role == "assistant" and message.get("tool_calls"):
        turn["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    thoughts = message.get("reasoning")
    thoughts = message.get("reasoning_content") if thoughts is None else thoughts
    if role == "assistant" and thoughts is not None:
        turn["reasoning"] = turn["reasoning_content"] = thoughts
    if role == "tool" and "tool_call_id" in message:
        turn["tool_call_id"] = message["tool_call_id"]
    turn |= {name: message[name] for name in ("name", "task") if isinstance(message.get(name), str)}
    return turn | ({"tools": message.get("tools")} if role == "developer" else {})


def _join_parts(texts: Sequence[str], kinds: Sequence[Any], marks: Mapping[Modality, str]) -> str:
    """Put missing placeholders before the text, as `_get_full_multimodal_text_prompt` does."""
    words = "\n".join(texts)
    if any(kind not in marks for kind in kinds):
        raise Unseen("items in a template for texts")
    missing = list[str]()
    for mark, count in Counter(marks[kind] for kind in kinds).items():
        if (missing_marks := count - words.count(mark)) < 0:
            raise Unrendered(f"the text has more {mark} than the message has items")
        missing += [mark] * missing_marks
    return "\n".join([*missing, words] if words else missing)


def _call(call: Any) -> dict[str, Any]:
    match call:
        case {"id": _, "type": _, "function": {"name": str(), "arguments": str(text), **more}}:
            try:
                parsed = json.loads(text or "{}")
            except ValueError:
                parsed = {}
            arguments = parsed if isinstance(parsed, dict) else {}
            function = {"arguments": arguments, "name": call["function"]["name"], **more}
            first = {"id": call["id"], "function": function, "type": call["type"]}
            return first | {name: call[name] for name in call if name not in first}
    raise Unseen("an unusual tool call")


def _tool(tool: Any) -> dict[str, Any]:
    """Return all fields of vLLM's type `ChatCompletionToolsParam`, and no others."""
    match tool:
        case {"type": "function", "function": {"name": str(), **more} as function, **others}:
            if not others and isinstance(more.get("strict"), bool | None):
                fields = {n: function.get(n) for n in ("name", "description", "parameters")}
                if more.get("strict") is not None:
                    fields["strict"] = more["strict"]
                if "defer_loading" not in more:
                    return {"type": "function", "function": fields}
    raise Unseen("an unusual tool")


def _part(part: Any) -> dict[str, Any] | None:
    """Convert a content part; None for one that vLLM drops. Texts may have any type."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if (medium := medium_of(part)) is not None:
        return {"type": str(MODALITY_OF[medium[0]])}
    kind = part.get("type")
    field = TEXT_FIELDS.get(kind)
    if field is None:
        raise Unseen("an unusual content part")
    words, more = part.get(field), {name: part[name] for name in part if name not in _PART_FIELDS}
    if words is None and kind in WORDLESS:
        return None
    return {"type": "text", "text": words, **more}


def serve(pipe: Connection, memory_bytes: int) -> None:
    """Answer the parent's messages.

    The first message has the model, its text counting and its template's content format; the answer
    is the reason why it cannot count, or empty. Every other message has a request and whether to
    tokenise it; the answer is its tokens, None if not counted, or why vLLM fails or may fail.
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
    except Exception as error:  # noqa: BLE001 - the model's files may have any fault
        pipe.send(f"{model}: {one_line(str(error)) or type(error).__name__}")
        return
    pipe.send("")
    while True:
        request, tokenise = pipe.recv()
        answer: int | str | None
        try:
            answer = counter.count(counting, request, tokenise=tokenise)
        except Unrendered as error:
            answer = one_line(str(error))
        except Unseen as error:
            words = f"what the chat template does with {error} {NOT_MODELLED}"
            answer = words if counter.rejects or request.items() else None
        except Uncounted:
            answer = None
        pipe.send(answer)


if __name__ == "__main__":
    serve_parent(serve)
