"""What a program asks `Calibration.admits` about, as what decides whether it fits."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmcalib.admission.counting import Counting
from mmcalib.admission.inputs import is_cell, not_taken, presented
from mmcalib.corpus.chat import asked_by, digest
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
from mmcalib.domain.items import Prompt, Skipped
from mmcalib.domain.shapes import Encoded
from mmcalib.files import Scratch
from mmcalib.text import without_particulars

Root = str | os.PathLike[str] | None
_REQUEST_FIELDS = {"messages", "body"}


def admitted(
    gate: Gate,
    item: Any,
    root: Root = None,
    counting: Counting | None = None,
) -> Admission:
    """Whether it fits, with a remedy where not; `root` as `RequestLines` takes it, `counting` as
    `admitted_prompt` does.

    Raises TypeError for what is none of `held.TAKEN`, and UsageError for a request that leads
    outside its root.
    """
    if isinstance(item, Mapping) and not is_cell(item):
        with _request_lines(root) as reader:
            prompt = reader.prompt("the request", _request_line(item))
            if isinstance(prompt, Skipped):
                return unusable(prompt.reason)
            return admitted_prompt(gate, prompt, counting)[1]
    file = presented(item)
    return unreadable(file.reason) if isinstance(file, Skipped) else admitted_file(gate, file)


def admitted_file(gate: Gate, file: Encoded) -> Admission:
    return with_remedy(gate, file, admit(gate, file))


def admitted_prompt(
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
    wants = asked_by(prompt)
    messages, fields = prompt.messages, prompt.fields
    # What the calibration counted this very text to take.
    known = gate.counted.get(digest(messages, fields)) if gate.counted else None
    text = None if known is None else Between.exactly(known)
    answer = admit_prompt(gate, files, wants, text)
    if counting and text is None and text_decides(gate, files, answer):
        tokens = counting.tokens(messages, fields, Counter(file.modality for file in files))
        if tokens is not None:
            text = Between.exactly(tokens)
            answer = admit_prompt(gate, files, wants, text)
    return tuple(files), with_prompt_remedy(gate, files, wants, answer, text)


def unreadable(reason: str, *, of: str = "") -> Admission:
    """Of what cannot be read nothing is served; of what is elsewhere nothing is known. `of` says
    which item of a request it is.
    """
    if reason == REMOTE:
        return _elsewhere(reason)
    return rejected(f"{of}{reason}", _instead(reason), basis="none", unread=reason)


def unusable(reason: str) -> Admission:
    """The same of a request."""
    if reason == REMOTE:
        return _elsewhere(reason)
    remedy = "correct the request, or leave it out"
    return rejected(reason, remedy, basis="none", unread=without_particulars(reason))


def _elsewhere(reason: str) -> Admission:
    return undecided(reason, "check a local copy, or name its host in --allowed-media-domains")


def _instead(reason: str) -> str:
    from mmcalib.media.image import TOO_LARGE

    if reason == TOO_LARGE:
        return "make it smaller, or leave it out"
    return "leave it out, or send another copy"


@contextmanager
def _request_lines(root: Root) -> Iterator[RequestLines]:
    """What reads requests of a program; inline media are kept as long as it is open."""
    allowed = Path(root) if root is not None else None
    with Scratch() as scratch:
        yield RequestLines(os.getcwd(), allowed_root=allowed, scratch=scratch.path)


def _request_line(request: Mapping[str, Any]) -> bytes:
    """The request as a file has it. Raises TypeError for a mapping that is none."""
    if not _REQUEST_FIELDS & set(request):
        raise not_taken(request)
    try:
        return json.dumps(request).encode()
    except (TypeError, ValueError):  # It holds a picture, say, which a request only names.
        raise not_taken(request) from None
