"""Counting the text of chat requests by transformers' tokenizer and chat template.

As a process: `python -m mmcalib.child.text_counter PIPE LIMIT`. A template, the patterns of a
tokenizer and the texts may come from somebody else, and may take for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from mmcalib.corpus.chat import MODALITY_OF, ChatRequest
from mmcalib.domain.items import TextCounting
from mmcalib.domain.shapes import Modality
from mmcalib.processes import confine, serve_parent

_MEDIA: Mapping[str, Modality] = {**MODALITY_OF, "input_audio": "audio"}
_ROLES = ("system", "user", "assistant")


class Uncounted(ValueError):  # noqa: N818 - a value in flight: the text stays bounded
    """The text cannot be counted here; the message says why."""


class Unrendered(Uncounted):
    """The template itself refuses the text, and so will vLLM."""


class TextCounter:
    """By the tokenizer of a checkpoint folder, or of one in the hub cache, and by this template, or
    its own, which gets the `content` of a message as its parts ("openai") or as one text
    ("string"). Raises `Uncounted` without a template, ImportError without transformers, and what
    transformers raises.
    """

    def __init__(self, model: str, content: str, template: str | None = None) -> None:
        from transformers import AutoTokenizer

        self._content = content

        self._tokenizer = AutoTokenizer.from_pretrained(
            model, local_files_only=True, trust_remote_code=False
        )
        if template is None:
            template = self._tokenizer.chat_template
        if not isinstance(template, str):
            raise Uncounted("it has no chat template, or several")
        if "strftime_now" in template:
            raise Uncounted("its chat template reads the clock")
        self._template = template

    def count(
        self, counting: TextCounting, request: ChatRequest, *, tokenise: bool = True
    ) -> int | None:
        """Tokens of the prompt that are not within the placeholder of an item, as vLLM's renderer
        makes it; without `tokenise` it is only rendered. Raises `Uncounted`.
        """
        if not request.is_plain or request.fields.get("tools") is not None:
            raise Uncounted("it gives the template more than messages")
        items = request.items()
        if missing := [m for m in items if m not in counting.around]:
            raise Uncounted(f"what {missing[0]} items add to a text is not known")
        turns = [_turn(message, self._content) for message in request.messages]
        from jinja2 import TemplateError

        try:
            prompt = self._tokenizer.apply_chat_template(
                turns,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=True,
                **counting.kwargs,
            )
        except TemplateError as error:
            raise Unrendered(f"the chat template refuses it: {error}") from error
        except Exception as error:
            raise Uncounted(f"the chat template fails: {error}") from error
        if not tokenise:
            return None
        tokens = len(self._tokenizer.encode(prompt, add_special_tokens=False))
        return tokens + sum(counting.around[m] * count for m, count in items.items())


def _turn(message: Mapping[str, Any], content_format: str) -> dict[str, Any]:
    """As vLLM 0.32 gives it to templates (`parse_chat_messages` in vllm/renderers/chat_utils.py).
    What is written in an unusual way is not guessed at.
    """
    if message.keys() != {"role", "content"} or message["role"] not in _ROLES:
        raise Uncounted("a message of an unusual kind")
    content = message["content"]
    parts = [_part(part) for part in ([content] if isinstance(content, str) else content or [])]
    if content_format == "openai":
        return {"role": message["role"], "content": parts}
    if any(part["type"] != "text" for part in parts):
        raise Uncounted("items in a template of texts")
    words = "\n".join(part["text"] for part in parts if part["text"])
    return {"role": message["role"], "content": words}


def _part(part: object) -> dict[str, str]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case {"type": "text", "text": str(words), **more} if not more:
            return {"type": "text", "text": words}
        case {"type": str(kind), **more} if kind in _MEDIA and more.keys() <= {kind, "uuid"}:
            return {"type": _MEDIA[kind]}
    raise Uncounted("a part of an unusual kind")


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
        counter = TextCounter(model, content, counting.template)
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
