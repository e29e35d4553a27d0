"""Logs of proxies and gateways: OpenAI chat requests, one to an entry, alone or in an envelope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mmcalib.corpus.exported import Entry, Exported, ExportFormat, Unusable, mapping, tokens
from mmcalib.corpus.sent import seconds_of

# Where gateways put the body of a request, and its time. The body may be JSON in a string.
_ENVELOPES: Final = (
    *("request", "body", "request_body", "requestBody", "req", "http", "payload", "json", "data"),
    *("message", "params"),
)
_TIMES: Final = (
    *("timestamp", "@timestamp", "ts", "time", "datetime", "created_at", "start_time"),
    *("startTime", "request_time"),
)
_ANSWERS: Final = ("response", "response_body", "responseBody", "res", "body", "payload", "json")
_DEEPEST: Final = 4
# Seconds of the year 5138: what is more are milliseconds.
_MOST_SECONDS: Final = 1e11


def envelopes(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """From the entry to the chat request in it, the request last; empty where there is none."""
    return _inside(entry, _DEEPEST)


def _inside(entry: Mapping[str, Any], deep: int) -> list[Mapping[str, Any]]:
    if isinstance(entry.get("messages"), list):
        return [entry]
    if deep:
        for name in _ENVELOPES:
            if name in entry and (found := _inside(mapping(entry[name]), deep - 1)):
                return [entry, *found]
    return []


def sent(entry: Mapping[str, Any]) -> float | None:
    """When it says that it was sent, in seconds."""
    for name in _TIMES:
        seconds = seconds_of(entry.get(name))
        if seconds is not None:
            return seconds / 1000 if seconds > _MOST_SECONDS else seconds
    return None


def answered(entry: Mapping[str, Any], deep: int = 3) -> int | None:
    """The tokens of the answer, where the response stands beside the request."""
    usage = mapping(entry.get("usage"))
    found = tokens(usage.get("completion_tokens"), usage.get("output_tokens"))
    if found is None and deep:
        inner = (answered(mapping(entry[n]), deep - 1) for n in _ANSWERS if n in entry)
        return next((one for one in inner if one is not None), None)
    return found


def _recognises(entry: Entry) -> bool:
    return isinstance(entry, Mapping) and bool(envelopes(entry))


def _requests(entry: Mapping[str, Any]) -> Iterator[Exported | Unusable]:
    found = envelopes(entry)
    if not found:
        yield Unusable("no chat request in it")
        return
    times = (sent(one) for one in found)
    moment = next((time for time in times if time is not None), None)
    counts = (answered(one) for one in found)
    count = next((count for count in counts if count is not None), None)
    yield Exported(found[-1], moment, count)


FORMAT = ExportFormat(_recognises, _requests)
