"""A request as it was found in somebody's export, and what every form of export is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Entry = Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Exported:
    """`body` is an OpenAI chat request, or a line of vLLM's benchmarks; `sent_s` is as of `Text`,
    and `answered_tokens` are those that its answer had.
    """

    body: Mapping[str, Any]
    sent_s: float | None = None
    answered_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Unusable:
    """An entry that is a request, of which too little was kept; `reason` says what lacks."""

    reason: str


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """`recognises` tells its entries, which are JSON objects or lines of text, by their fields;
    `requests` has those of an entry, none where it is about something else.
    """

    recognises: Callable[[Entry], bool]
    requests: Callable[[Any], Iterator[Exported | Unusable]]


def unpacked(value: object) -> object:
    """What a string holds that is JSON of an object or a list; all else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def mapping(value: object) -> Mapping[str, Any]:
    """The object that a value is, or holds as a string; empty for anything else."""
    found = unpacked(value)
    return found if isinstance(found, Mapping) else {}


def tokens(*given: object) -> int | None:
    """The first that is a count."""
    return next((n for n in given if type(n) is int and n > 0), None)


def names(given: object) -> list[str]:
    """The name that a field is, or those that it lists."""
    listed = given if isinstance(given, list) else [given]
    return [name for name in listed if isinstance(name, str) and name]
