"""LiteLLM: its logging payload, as callbacks and buckets have it, and rows of its spend logs.

`StandardLoggingPayload` of litellm/types/utils.py, and the table `LiteLLM_SpendLogs`, which keeps
messages only with `store_prompts_in_spend_logs`.
"""

from __future__ import annotations

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

_PAYLOAD: Final = "standard_logging_object"
_CHAT: Final = ("completion", "acompletion")
# What it writes where messages are not to be logged.
_REDACTED: Final = "redacted-by-litellm"
# The request as the proxy got it: in the payload an envelope of the HTTP request.
_BODIES: Final = ("proxy_server_request", "request_data")


def _recognises(entry: Entry) -> bool:
    return isinstance(entry, Mapping) and (_PAYLOAD in entry or "call_type" in entry)


def _requests(entry: Mapping[str, Any]) -> Iterator[Exported | Unusable]:
    entry = mapping(entry.get(_PAYLOAD)) or entry
    if entry.get("call_type", _CHAT[0]) not in _CHAT:
        return
    if str(entry.get("cache_hit")).lower() == "true":
        # The server behind the proxy never saw it.
        return
    body = _body(entry)
    if body is None:
        yield Unusable("its messages were not kept: store_prompts_in_spend_logs")
    elif _redacted(body):
        yield Unusable("its messages were redacted by LiteLLM")
    else:
        yield Exported(body, sent(entry), _answered(entry))


def _body(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for name in _BODIES:
        given = mapping(entry.get(name))
        given = mapping(given.get("body")) or given
        if given.get("messages"):
            return given
    messages = unpacked(entry.get("messages"))
    if isinstance(messages, Mapping):
        messages = messages.get("messages")
    if not messages:
        return None
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {**mapping(entry.get("model_parameters")), "messages": messages}


def _redacted(body: Mapping[str, Any]) -> bool:
    messages = body["messages"]
    told = [mapping(one).get("content") for one in messages] if isinstance(messages, list) else []
    return _REDACTED in told


def _answered(entry: Mapping[str, Any]) -> int | None:
    usage = mapping(mapping(entry.get("response")).get("usage"))
    return tokens(entry.get("completion_tokens"), usage.get("completion_tokens"))


FORMAT = ExportFormat(_recognises, _requests)
