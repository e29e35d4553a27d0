"""Langfuse: observations, as its API and its exports to a bucket have them, alone or in a trace.

Names are those of the API (`startTime`), or with underscores, as in the columns of an export.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mmcalib.corpus.exported import (
    Entry,
    Exported,
    ExportFormat,
    Unusable,
    mapping,
    tokens,
    unpacked,
)
from mmcalib.corpus.exports.openai import sent

_REQUEST: Final = "GENERATION"
# What stands for media that Langfuse keeps in its own storage.
_KEPT_ELSEWHERE: Final = "@@@langfuseMedia:"


def _recognises(entry: Entry) -> bool:
    if not isinstance(entry, Mapping):
        return False
    return "observations" in entry or ("input" in entry and bool(entry.keys() & _TRACES))


_TRACES: Final = {"traceId", "trace_id"}


def _requests(entry: Mapping[str, Any]) -> Iterator[Exported | Unusable]:
    nested = unpacked(entry.get("observations"))
    if isinstance(nested, list):
        for one in nested:
            yield from _requests(mapping(one))
        return
    if str(entry.get("type", _REQUEST)).upper() != _REQUEST:
        return
    body = _body(entry)
    if body is None:
        yield Unusable("its input is no chat")
    elif _KEPT_ELSEWHERE in json.dumps(body["messages"]):
        yield Unusable("its media are in Langfuse's own storage, which the export does not hold")
    else:
        yield Exported(body, sent(entry), _answered(entry))


def _body(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    given = unpacked(entry.get("input"))
    held: Mapping[str, Any] = {}
    if isinstance(given, Mapping):
        held, given = given, unpacked(given.get("messages"))
    if isinstance(given, str) and given:
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        return None
    tools = {"tools": held["tools"]} if held.get("tools") else {}
    return {**_parameters(entry), **tools, "messages": given}


def _parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Its values may be strings there: those that are numbers are meant so."""
    given = mapping(entry.get("modelParameters") or entry.get("model_parameters"))
    return {
        name: int(value) if isinstance(value, str) and value.isdecimal() else value
        for name, value in given.items()
    }


def _answered(entry: Mapping[str, Any]) -> int | None:
    details = mapping(entry.get("usageDetails") or entry.get("usage_details"))
    usage = mapping(entry.get("usage"))
    return tokens(
        *(details.get("output"), details.get("completion_tokens"), usage.get("output")),
        *(entry.get("completionTokens"), entry.get("completion_tokens")),
    )


FORMAT = ExportFormat(_recognises, _requests)
