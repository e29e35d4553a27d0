"""What a program asks `Calibration.admits` about, as what decides whether it fits."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmcalib.corpus.asking import asked, asked_by, digest
from mmcalib.corpus.content_parts import PART_OF, text_part, url_part
from mmcalib.corpus.request_line import RequestLines
from mmcalib.corpus.urls import REMOTE
from mmcalib.derive.admission import (
    Admission,
    admit,
    admit_prompt,
    rejected,
    text_decides,
    undecided,
)
from mmcalib.derive.gate import Gate
from mmcalib.derive.remedies import with_prompt_remedy, with_remedy
from mmcalib.derive.request import Between
from mmcalib.domain.asked import Asked
from mmcalib.domain.encoding import Encoded
from mmcalib.domain.items import Prompt, Skipped
from mmcalib.scratch import Scratch
from mmcalib.texts.counting import Counting
from mmcalib.wording import without_particulars
from mmcalib.workflows.gate.dataset_row import DatasetRow, dataset_row
from mmcalib.workflows.gate.held import NOWHERE, is_cell, presented

Root = str | os.PathLike[str] | None
Message = dict[str, object]


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
        row = dataset_row(item)
        if row is not None:
            return _admitted_row(gate, row, counting)
        with request_lines(root) as reader:
            prompt = reader.prompt("the request", request_line(item))
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
    from mmcalib.media.ending import examine_whole

    files: list[Encoded] = []
    for item in prompt.items:
        seen = examine_whole(item)
        if isinstance(seen, Skipped):
            return (), unreadable(seen.reason, of=f"{seen.path}: ")
        files.append(seen)
    wants = asked_by(prompt)
    return tuple(files), _together(gate, files, wants, prompt.messages, prompt.fields, counting)


def _admitted_row(gate: Gate, row: DatasetRow, counting: Counting | None) -> Admission:
    """One medium without words is judged as an item, all else as one prompt. The row's columns give
    the size of a picture that is elsewhere.
    """
    if row.empty:
        return unreadable(f"the column {row.empty} is empty")
    files: list[Encoded] = []
    for one in row.media:
        seen = presented(one.medium)
        if isinstance(seen, Skipped) and seen.reason == REMOTE and row.size:
            seen = Encoded(row.size)
        if isinstance(seen, Skipped):
            return unreadable(seen.reason)
        files.append(seen)
    if len(files) == 1 and not row.turns:
        return admitted_file(gate, files[0])
    messages = list(_messages(row, files))
    return _together(gate, files, asked(messages, row.fields), messages, dict(row.fields), counting)


def _messages(row: DatasetRow, files: Sequence[Encoded]) -> Iterator[Message]:
    """The media stand before the words of the first turn of the user."""
    waiting: list[object] = [url_part(PART_OF[f.modality], NOWHERE) for f in files]
    for role, words in row.turns or [("user", "")]:
        content: list[object] = [text_part(words)] if words else []
        if role == "user" and waiting:
            content, waiting = [*waiting, *content], []
        yield {"role": role, "content": content}
    if waiting:
        yield {"role": "user", "content": waiting}


def _together(
    gate: Gate,
    files: Sequence[Encoded],
    wants: Asked,
    messages: list[Message],
    fields: dict[str, object],
    counting: Counting | None,
) -> Admission:
    # What the calibration counted this very text to take.
    known = gate.counted.get(digest(messages, fields)) if gate.counted else None
    text = None if known is None else Between.exactly(known)
    answer = admit_prompt(gate, files, wants, text)
    if counting and text is None and text_decides(gate, files, answer):
        tokens = counting.tokens(messages, fields, Counter(file.modality for file in files))
        if tokens is not None:
            text = Between.exactly(tokens)
            answer = admit_prompt(gate, files, wants, text)
    return with_prompt_remedy(gate, files, wants, answer, text)


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
def request_lines(root: Root) -> Iterator[RequestLines]:
    """What reads requests of a program; inline media are kept as long as it is open."""
    allowed = Path(root) if root is not None else None
    with Scratch() as scratch:
        yield RequestLines(os.getcwd(), allowed_root=allowed, scratch=scratch.path)


def request_line(request: Mapping[str, Any]) -> bytes:
    """The request as a file has it; what JSON has no words for bears on nothing."""
    return json.dumps(request, default=lambda value: None).encode()
