"""From what servers leave to a requests file: entry by entry, and whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mmcalib.corpus.asking import answer_by
from mmcalib.corpus.carried import ByReference, Carrier
from mmcalib.corpus.chat import BadRequest, parse_line
from mmcalib.corpus.content_parts import MODALITY_OF
from mmcalib.corpus.entries import entries
from mmcalib.corpus.export_formats import requests_of
from mmcalib.corpus.exported import Exported, Unusable
from mmcalib.corpus.redacted import AsBlanks
from mmcalib.corpus.rewritten import rewritten
from mmcalib.corpus.urls import Unresolved
from mmcalib.domain.items import Prompt
from mmcalib.errors import CorpusError
from mmcalib.files import replacing
from mmcalib.progress import Progress, Silent
from mmcalib.result.converted import ConvertedRequests, RequestsLeftOut
from mmcalib.scratch import Scratch
from mmcalib.wording import one_line, without_particulars

# Reasons may name what only their entry has; more of them than this are one.
_MOST_REASONS: Final = 50
_MORE: Final = "other reasons"
_HINT: Final = "docs/requests.md says what is read; vLLM logs bodies at VLLM_LOGGING_LEVEL=DEBUG"


@dataclass(slots=True)
class _Tally:
    entries: int = 0
    requests: int = 0
    others: int = 0
    timed: int = 0
    answers: int = 0
    items: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def wrote(self, line: bytes) -> None:
        request = parse_line(line)
        self.requests += 1
        self.timed += request.sent_s is not None
        self.answers += answer_by(Prompt("", (), "", fields=request.fields)) is not None
        for message in request.messages:
            self.items.update(MODALITY_OF[media[0]] for media in message.media if media)

    def skip(self, reason: str, origin: str) -> None:
        # What follows the first colon is about this one alone.
        reason = without_particulars(one_line(reason))
        if reason not in self.skipped and len(self.skipped) >= _MOST_REASONS:
            reason = _MORE
        self.skipped[reason] += 1
        self.first.setdefault(reason, origin)


def convert(
    logs: Sequence[Path],
    out: Path,
    media: Path,
    *,
    form: str,
    redact: bool = False,
    allowed_root: Path | None = None,
    allow_url: bool = False,
    progress: Progress | None = None,
) -> ConvertedRequests:
    """Write what the logs hold of requests to `out`, and media that stand in them below `media`;
    `form` is one of `exports.NAMES`, or `AUTO`.

    Raises CorpusError where a log cannot be read or none holds a request: `out` then stays as it
    was. Raises OutputError, and UsageError for redacted media outside the allowed root.
    """
    tally = _Tally()
    with (
        Scratch() as scratch,
        replacing(out) as write,
        (progress or Silent()).step("reading requests") as task,
    ):
        carrier: Carrier = ByReference(media, out.absolute().parent)
        if redact:
            carrier = AsBlanks(
                media,
                out.absolute().parent,
                scratch=scratch.path,
                allowed_root=allowed_root,
                allow_url=allow_url,
            )
        for log in logs:
            for origin, found in _found(log, form, tally):
                task.advance()
                if isinstance(found, Unusable):
                    tally.skip(found.reason, origin)
                    continue
                try:
                    line = rewritten(found, log.absolute().parent, carrier, redact=redact)
                except (BadRequest, Unresolved) as error:
                    tally.skip(str(error), origin)
                    continue
                write(line + b"\n")
                tally.wrote(line)
        if not tally.requests:
            raise CorpusError(f"no request in {_names(logs)}{_why(tally)}", hint=_HINT)
    return ConvertedRequests(
        written=str(out),
        entries=tally.entries,
        requests=tally.requests,
        others=tally.others,
        skipped=tally.skipped.total(),
        timed=tally.timed,
        answers=tally.answers,
        items=dict(sorted(tally.items.items())),
        redacted=redact,
        left_out=[
            RequestsLeftOut(reason=reason, requests=count, first=tally.first[reason])
            for reason, count in tally.skipped.most_common()
        ],
    )


def _found(log: Path, form: str, tally: _Tally) -> Iterator[tuple[str, Exported | Unusable]]:
    for number, entry in enumerate(entries(log), start=1):
        tally.entries += 1
        origin = f"{log.name}:{number}"
        if isinstance(entry, Unusable):
            yield origin, entry
            continue
        any_request = False
        for found in requests_of(entry, form):
            any_request = True
            yield origin, found
        tally.others += not any_request


def _names(logs: Sequence[Path]) -> str:
    return ", ".join(one_line(str(log)) for log in logs)


def _why(tally: _Tally) -> str:
    return "".join(f": {reason}" for reason, _ in tally.skipped.most_common(1))
