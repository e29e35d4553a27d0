"""What a body may bring beside media and words: the tables of `bodies.yaml`, good and bad."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml

from judging.pool import Pool

Fields = Mapping[str, Any]
_MEDIUM = re.compile(r"<(?P<name>[\w.-]+)(?P<inline>\|base64)?>")
# What parts name, by its kind.
PART_MEDIA = {"image": "image-224x224.png", "video": "video-h264.mp4", "audio": "audio-1s.wav"}
_TABLES = yaml.safe_load(Path(__file__).with_name("bodies.yaml").read_text("utf-8"))
# Types of parts of words, and the field that holds the words.
_TEXTS = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    "refusal": "refusal",
    "thinking": "thinking",
}
_LONG: Sequence[Fields] = (
    *({"stop": ["x"] * 40}, {"bad_words": ["x"] * 300}, {"request_id": "x" * 300}),
    *({"cache_salt": "x" * 1024}, {"cache_salt": "x" * 1025}),
    {"logprob_token_ids": list(range(129)), "logprobs": True},
)
# Tried with every field, and what only some fields have a meaning for, as it stands.
ANY: Sequence[Any] = _TABLES["any"]
SOME: Sequence[Fields] = (
    *({name: value} for name, values in _TABLES["alone"].items() for value in values),
    *_TABLES["together"],
    *_LONG,
)
TOOLS: Mapping[str, Fields] = _TABLES["tools"]
MARKS: Sequence[str] = _TABLES["marks"]


def _spelled(template: Any, words: Mapping[str, str]) -> Any:
    """The template with words in place of their names in braces."""
    if isinstance(template, Mapping):
        return {_spelled(key, words): _spelled(value, words) for key, value in template.items()}
    if isinstance(template, str):
        for name, word in words.items():
            template = template.replace(f"{{{name}}}", word)
    if isinstance(template, list):
        return [_spelled(one, words) for one in template]
    return template


PARTS: Mapping[str, Any] = {
    **{
        name: part
        for kind, medium in PART_MEDIA.items()
        for name, part in _spelled(_TABLES["media_parts"], {"kind": kind, "medium": medium}).items()
    },
    **{
        name: part
        for kind, field in _TEXTS.items()
        for name, part in _spelled(_TABLES["text_parts"], {"kind": kind, "field": field}).items()
    },
    **_TABLES["parts"],
    **{f"bare {value!r}": value for value in _TABLES["bare_parts"]},
}

_CONTENTS: Sequence[Any] = (None, "", [], [{"type": "text", "text": "a"}], ["a"], 7, {})
# Messages before the request's own.
MESSAGES: Mapping[str, Sequence[Any]] = {
    **{
        f"{role} alone": [{"role": role, "content": "a"}]
        for role in ("system", "developer", "user", "assistant")
    },
    **{
        f"{role} of {content!r}": [{"role": role, "content": content}]
        for role in ("system", "user", "assistant", "tool", "developer", "ipython")
        for content in _CONTENTS
    },
    **{f"{role} without content": [{"role": role}] for role in ("system", "user", "assistant")},
    **_TABLES["messages"],
}


def each_field(names: Sequence[str], seed: int) -> Iterator[Fields]:
    """Endless: in each round one more value of every field, `SOME` of its own before `ANY`."""
    random = Random(seed)
    of: dict[str, list[Fields]] = {name: [] for name in names}
    for one in SOME:
        of.setdefault(next(iter(one)), []).append(one)
    for name, own in of.items():
        random.shuffle(own)
        if name in names:
            own += [{name: value} for value in random.sample(ANY, len(ANY))]
        # Both in turn: half of what is tried has another type.
        own[:] = [one for pair in zip(own, reversed(own), strict=True) for one in pair][: len(own)]
    for number in range(max(map(len, of.values()))):
        order = sorted(of)
        random.shuffle(order)
        yield from (of[name][number] for name in order if number < len(of[name]))


def filled(template: Any, pool: Pool) -> Any:
    """With media in place of their names."""
    if isinstance(template, str) and (found := _MEDIUM.fullmatch(template)) is not None:
        if found["name"] not in pool:
            return template
        path = pool[found["name"]].path
        return base64.b64encode(path.read_bytes()).decode() if found["inline"] else path.as_uri()
    if isinstance(template, Mapping):
        return {name: filled(value, pool) for name, value in template.items()}
    return [filled(one, pool) for one in template] if isinstance(template, list) else template
