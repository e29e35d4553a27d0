"""What a program asks `Calibration.admits` about, as what decides whether it fits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmcalib.admission.counting import Counting
from mmcalib.admission.inputs import describe_item, is_cell, not_taken
from mmcalib.corpus.chat import Prompt
from mmcalib.corpus.requests import RequestLines
from mmcalib.corpus.urls import REMOTE
from mmcalib.derive.admission import (
    Admission,
    Gate,
    admit,
    admit_prompt,
    rejected,
    text_decides,
    undecided,
)
from mmcalib.derive.fit import Between
from mmcalib.derive.remedies import with_prompt_remedy, with_remedy
from mmcalib.domain.items import Skipped
from mmcalib.domain.shapes import Encoded
from mmcalib.files import Scratch
from mmcalib.text import without_particulars

_REQUEST_FIELDS = {"messages", "body"}


def admit_item(
    gate: Gate,
    item: Any,
    root: str | os.PathLike[str] | None = None,
    counting: Counting | None = None,
) -> Admission:
    """Whether it fits, with a remedy where not; `root` as `RequestLines` takes it, `counting` as
    `admit_request` does.

    Raises TypeError for what is none of `inputs.TAKEN`, and UsageError for a request that leads
    outside its root.
    """
    if isinstance(item, Mapping) and not is_cell(item):
        line = _request_line(item)
        # Inline media are kept until the answer.
        with Scratch() as scratch:
            allowed = Path(root) if root is not None else None
            reader = RequestLines(
                os.getcwd(), allowed_root=allowed, scratch=scratch.path, as_sent=True
            )
            prompt = reader.prompt("the request", line)
            if isinstance(prompt, Skipped):
                return unusable(prompt.reason)
            return admit_request(gate, prompt, counting)[1]
    return admit_file(gate, describe_item(item))


def admit_file(gate: Gate, file: Encoded | Skipped) -> Admission:
    """Whether the file fits, with a remedy if not."""
    if isinstance(file, Skipped):
        return unreadable(file.reason)
    return with_remedy(gate, file, admit(gate, file))


def admit_request(
    gate: Gate, prompt: Prompt, counting: Counting | None
) -> tuple[tuple[Encoded, ...], Admission]:
    """What its items are, none where one cannot be read, and whether it fits. A text that its bound
    does not settle is counted, where that is possible.
    """
    from mmcalib.media.probe import examine_whole

    files: list[Encoded] = []
    for item in prompt.items:
        seen = examine_whole(item)
        if isinstance(seen, Skipped):
            return (), unreadable(seen.reason, of=f"{seen.path}: ")
        files.append(seen)
    wants = prompt.request.asked()
    # What the calibration counted this very text to take.
    known = gate.counted.get(prompt.request.digest()) if gate.counted else None
    text = None if known is None else Between.exactly(known)
    answer = admit_prompt(gate, files, wants, text)
    if counting and text is None and text_decides(gate, files, answer):
        tokens = counting.tokens(prompt.request)
        if tokens is not None:
            text = Between.exactly(tokens)
            answer = admit_prompt(gate, files, wants, text)
    return tuple(files), with_prompt_remedy(gate, files, wants, answer, text)


def unreadable(reason: str, *, of: str = "") -> Admission:
    """Of what cannot be read nothing is served; of what is elsewhere nothing is known. `of` says
    which item of a request it is.
    """
    if reason == REMOTE:
        return _undecided_elsewhere(reason)
    from mmcalib.media.image import TOO_LARGE

    change = "make it smaller, or leave it out"
    instead = change if reason == TOO_LARGE else "leave it out, or send another copy"
    return rejected(f"{of}{reason}", instead, basis="none", unread=reason)


def unusable(reason: str) -> Admission:
    """The same of a request."""
    if reason == REMOTE:
        return _undecided_elsewhere(reason)
    remedy = "correct the request, or leave it out"
    return rejected(reason, remedy, basis="none", unread=without_particulars(reason))


def _undecided_elsewhere(reason: str) -> Admission:
    return undecided(reason, "check a local copy, or name its host in --allowed-media-domains")


def _request_line(request: Mapping[str, Any]) -> bytes:
    """The request as a file has it. Raises TypeError for a mapping that is none."""
    if not _REQUEST_FIELDS & set(request):
        raise not_taken(request)
    try:
        return json.dumps(request).encode()
    except (TypeError, ValueError):  # It holds a picture, say, which a request only names.
        raise not_taken(request) from None
