"""Check new data against a calibration by reading headers; needs no engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mmcalib.admission import admits
from mmcalib.admission.calibration import Calibration
from mmcalib.corpus.chat import Prompt, Source
from mmcalib.corpus.requests import RequestLines, open_requests
from mmcalib.corpus.resolve import find_sources
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import EncodedItem, takes_video_as_audio
from mmcalib.files import Scratch
from mmcalib.gate.admission import Gate
from mmcalib.media.probe import examine_whole
from mmcalib.media.sniff import MEDIA_EXTENSIONS, extension_of
from mmcalib.results.check import CheckedItem
from mmcalib.storage.location import Location
from mmcalib.storage.tables import names_cell

# `.ts` and `.mts` files are more often TypeScript than transport streams.
_SAY_MEDIA = MEDIA_EXTENSIONS - {"ts", "mts"}
# Requests to remember, at about 300 bytes each: the next turn of a session comes soon.
_MOST_TURNS = 1 << 16


def check(
    calibration: Calibration,
    data: Sequence[str | Path] = (),
    requests: Sequence[Path] = (),
    lines: Iterable[bytes] = (),
    *,
    allowed_root: Path | None = None,
) -> Iterator[CheckedItem | Skipped]:
    """Yield one answer per item and prompt: of `data` (as for `resolve`), `requests`, then `lines`,
    each a path, a URL or a chat request. Files without media or a media file's name are `Skipped`.

    A request that leaves the allowed root (default: its file's folder; for `lines`, the working
    folder) is unknown. Raises CorpusError for a missing source, UsageError for a calibration
    without costs.
    """
    with Scratch() as scratch:
        gate = _Gate(calibration.gate, scratch.path, calibration.counting)
        media = [(one, each) for one in data for each in find_sources(one, given_as="NEW_DATA")]
        how = admits.as_sent(calibration.gate, scratch.path, allowed_root, calibration.grammar)
        files = open_requests(requests, how)
        for one, source in media:
            # If it is one file or object, its item has this path.
            path = os.fspath(one)
            item_path = os.path.abspath(path) if Location.of(path).is_file else path
            yield from gate.source(source, named=item_path)
        for file in files:
            yield from map(gate.prompt, file.prompts())
        reader = RequestLines(os.getcwd(), replace(how, urls_only=True))
        for number, line in enumerate(lines, start=1):
            if text := line.strip():
                yield gate.line(text, f"line {number}", reader)


class _Gate:
    """Answers for items and prompts; removes the files of inline media after each answer."""

    def __init__(self, gate: Gate, scratch: Path, counting: admits.TextCounter | None) -> None:
        self._gate, self._scratch = gate, os.path.realpath(scratch)
        self._counting = counting
        # Hash of a request's messages -> the first request of its session, and its turn.
        self._turns: dict[int, tuple[str, int]] = {}

    def source(self, source: Source, *, named: str) -> Iterator[CheckedItem | Skipped]:
        """Check a source's requests (rows of tables, samples of tar archives), then other items;
        skip non-media, except `named`, cells, and media names.
        """
        answered = set[int]()
        for prompt in source.prompts():
            # Of others, the items say what is wrong.
            if isinstance(prompt, Prompt):
                answered |= {hash(item.path) for item in prompt.items}
                yield self.prompt(prompt)
        for item in source.items():
            if hash(item.path) in answered:
                continue
            seen = self._examine(item)
            by_name = extension_of(item.path) in _SAY_MEDIA or names_cell(item.path)
            says_media = item.path == named or by_name
            if isinstance(seen, Skipped) and seen.no_media and not says_media:
                yield seen
            else:
                yield self._check_file(item.path, seen)

    def _examine(self, item: Item | Skipped) -> EncodedItem | Skipped:
        if isinstance(item, Skipped):
            return item
        return examine_whole(item, sound=takes_video_as_audio(self._gate.counts))

    def _check_file(self, path: str, file: EncodedItem | Skipped) -> CheckedItem:
        shapes = () if isinstance(file, Skipped) else (file.shape,)
        given = isinstance(file, EncodedItem) and file.encoding.given
        return CheckedItem(path, "item", shapes, admits.admit_file(self._gate, file), given=given)

    def prompt(self, prompt: Prompt | Skipped) -> CheckedItem:
        if isinstance(prompt, Skipped):
            return CheckedItem(prompt.path, "prompt", (), admits.answer_unusable(prompt.reason))
        try:
            files, answer = admits.admit_request(self._gate, prompt, self._counting, self._scratch)
        finally:
            for item in prompt.items:
                if os.path.dirname(item.path) == self._scratch:
                    with suppress(OSError):
                        os.unlink(item.path)
        shapes, place = tuple(file.shape for file in files), self._place(prompt)
        given = any(file.encoding.given for file in files)
        return CheckedItem(prompt.origin, "prompt", shapes, answer, *place, prompt.by_path, given)

    def _place(self, prompt: Prompt) -> tuple[str, int]:
        """Return the first request of the prompt's session, and its turn from 1: it continues the
        latest request whose messages its own begin with.
        """
        before, key = (prompt.origin, 0), 0
        for message in prompt.request.messages:
            before = self._turns.get(key, before)
            key = hash((key, repr(message)))
        session, turn = before[0], before[1] + 1
        self._turns[key] = session, turn
        if len(self._turns) > _MOST_TURNS:
            del self._turns[next(iter(self._turns))]
        return session, turn

    def line(self, text: bytes, origin: str, reader: RequestLines) -> CheckedItem:
        """Check a line: a JSON object is a chat request, anything else a path or a URL."""
        if text.startswith(b"{"):
            return self.prompt(reader.prompt(origin, text))
        item = admits.item_at(os.fsdecode(text))
        file = self._examine(item)
        # A data URL has no path: name its line.
        return self._check_file(origin if item.path == admits.IN_MEMORY else item.path, file)
