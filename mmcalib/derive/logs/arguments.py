"""Engine arguments as the log prints them: what somebody set, and what the engine made of it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

# Older logs print them in full (0.11: 'api_key': ['...']).
SECRETS = {"api_key", "hf_token"}

# The engine's configuration names some things differently from its arguments
# (vllm/config/vllm.py, VllmConfig.__str__).
_ARGUMENT_OF = {
    "max_seq_len": "max_model_len",
    "chunked_prefill_enabled": "enable_chunked_prefill",
}
# A configuration is about 6,000 characters; what is longer by far is not one.
_MOST_CHARS = 100_000
# Bytes and tokens are far below.
_NUMBER_BELOW = 2**63
_OPEN, _CLOSE, _QUOTES = "([{<", ")]}>", "'\""

_NON_DEFAULT = re.compile(r"non-default args: \{")
_NAMESPACE = re.compile(r"\bargs: Namespace\(")
_CONFIG = re.compile(r"Initializing an? (?:V\d )?LLM engine \(v[^)]{1,80}\) with config: ")
# Logs are quoted with "..." for what the quoter left out.
_KEY = re.compile(r"\s*(?:\.{3}\s*)?(?:'([A-Za-z_]\w{0,60})'\s*:|([A-Za-z_]\w{0,60})=)\s*")

Value = bool | int | float | str | list[object] | dict[object, object] | None


def arguments_in(text: str) -> dict[str, Value] | None:
    """What "non-default args: {...}" says, without secrets; None where the line is another."""
    found = _NON_DEFAULT.search(text)
    return _entries(text[found.end() :], "}") if found else None


def all_arguments_in(text: str) -> dict[str, Value] | None:
    """What "args: Namespace(...)" says: to 0.8, every argument with its default."""
    found = _NAMESPACE.search(text)
    return _entries(text[found.end() :], ")") if found else None


def config_in(text: str) -> dict[str, Value] | None:
    """The scalars of "Initializing a V1 LLM engine (v...) with config: ...", by argument name."""
    found = _CONFIG.search(text)
    if not found:
        return None
    entries = _entries(text[found.end() :], "")
    return {
        _ARGUMENT_OF.get(name, name): value.removeprefix("torch.")
        if isinstance(value, str)
        else value
        for name, value in entries.items()
        if not isinstance(value, list | dict)
    }


def _entries(text: str, end: str) -> dict[str, Value]:
    """`'name': value` or `name=value`, separated by commas, up to a closing `end`."""
    entries: dict[str, Value] = {}
    for part in _parts(text[:_MOST_CHARS], end):
        key = _KEY.match(part)
        if key:
            name = key.group(1) or key.group(2)
            if name not in SECRETS:
                entries[name] = _value(part[key.end() :].strip())
    return entries


def _parts(text: str, end: str) -> Iterator[str]:
    """The text cut at its outermost commas, up to `end` outside of brackets and quotes."""
    depth, quote, start = 0, "", 0
    for position, character in enumerate(text):
        if quote:
            if character == quote and text[position - 1] != "\\":
                quote = ""
        elif character in _QUOTES:
            quote = character
        elif depth == 0 and end and character == end:
            yield text[start:position]
            return
        elif character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth = max(depth - 1, 0)
        elif character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _value(text: str) -> Value:
    """A literal that JSON can carry as its value; anything else (an enum, a class, an elision, a
    number beyond all bounds) as the text it is.
    """
    try:
        value: Value = ast.literal_eval(text)
        written = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        kept = json.loads(written) == value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, OverflowError):
        return text
    return value if kept and _sane(value) else text


def _sane(value: object) -> bool:
    """Whether every number is one that a setting could have."""
    match value:
        case int() | float():
            return abs(value) < _NUMBER_BELOW
        case list():
            return all(map(_sane, value))
        case dict():
            return all(map(_sane, value.values()))
        case _:
            return True
