"""One line of a requests file, made of what an export has of a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmcalib.corpus.carried import Carrier
from mmcalib.corpus.chat import ChatMessage, parse_line
from mmcalib.corpus.content_parts import url_part
from mmcalib.corpus.exported import Exported
from mmcalib.corpus.redacted import without_names, without_words
from mmcalib.corpus.sent import FIELD

_ANSWER = "max_completion_tokens"


def rewritten(found: Exported, folder: Path, carrier: Carrier, *, redact: bool) -> bytes:
    """The line, without its end: messages, the fields that bear on their length, and the time at
    which it was sent. An answer that nobody bounded is asked to be as long as it was. `folder` is
    that of the export.

    Raises `BadRequest` for what mmcalib would not read, `Unresolved`, OutputError and UsageError.
    """
    request = parse_line(json.dumps(found.body).encode())
    fields = dict(request.fields)
    if found.answered_tokens is not None and not fields.keys() & {_ANSWER, "max_tokens"}:
        fields[_ANSWER] = found.answered_tokens
    messages = [
        _message(message, raw, folder, carrier, redact=redact)
        for message, raw in zip(request.messages, request.written, strict=True)
    ]
    line: dict[str, Any] = {"messages": messages}
    line |= without_names(fields) if redact else fields
    sent_s = request.sent_s if found.sent_s is None else found.sent_s
    if sent_s is not None:
        line[FIELD] = sent_s
    return json.dumps(line).encode()


def _message(
    message: ChatMessage, raw: dict[str, object], folder: Path, carrier: Carrier, *, redact: bool
) -> dict[str, Any]:
    named = [media and url_part(media[0], carrier.url(media, folder)) for media in message.media]
    if redact:
        return without_words(raw, [part for part in named if part])
    content = raw.get("content")
    if not isinstance(content, list):
        return raw
    return {**raw, "content": [new or old for new, old in zip(named, content, strict=True)]}
