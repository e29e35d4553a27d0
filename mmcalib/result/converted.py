"""What `mmcalib requests --json` prints."""

from __future__ import annotations

from mmcalib.result.part import DocumentPart


class RequestsLeftOut(DocumentPart):
    """Why requests were left out, how many, and where the first of them stands."""

    reason: str
    requests: int
    first: str


class ConvertedRequests(DocumentPart):
    """Of `entries` that were read, `requests` went to `written`; `others` are about something else.
    `timed` requests say when they were sent, and `answers` how long their answer may be.
    """

    written: str
    entries: int
    requests: int
    others: int
    skipped: int
    timed: int
    answers: int
    items: dict[str, int]
    redacted: bool
    left_out: list[RequestsLeftOut]
