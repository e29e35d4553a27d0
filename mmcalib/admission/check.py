"""New data against a calibration: headers are read, nothing is decoded, no engine is needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from mmcalib.admission.admits import admitted_prompt, unreadable, unusable
from mmcalib.admission.calibration import Calibration
from mmcalib.admission.counting import Counting
from mmcalib.admission.inputs import NOWHERE, item_named
from mmcalib.corpus.requests import RequestLines, RequestsSource, labels
from mmcalib.corpus.resolve import resolve
from mmcalib.corpus.source import Source
from mmcalib.derive.admission import Admission, Gate, admit
from mmcalib.derive.remedies import with_remedy
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.domain.shapes import Encoded
from mmcalib.files import Scratch
from mmcalib.media.probe import examine_whole
from mmcalib.media.sniff import MEDIA_ENDINGS, ending_of
from mmcalib.results.check import Checked
from mmcalib.storage.location import BEHIND, Location

# A folder with files of `.ts` and `.mts` is more often TypeScript than transport streams.
SAYS_MEDIA = MEDIA_ENDINGS - {"ts", "mts"}


def check(
    calibration: Calibration,
    data: Sequence[str | Path] = (),
    requests: Sequence[Path] = (),
    lines: Iterable[bytes] = (),
    *,
    allowed_root: Path | None = None,
) -> Iterator[Checked | Skipped]:
    """One answer per item and prompt, as they come: `data` as `resolve` takes it, requests, then
    `lines`, each a path, a URL or a chat request. `Skipped` are files that are no media, and whose
    names do not say that they are.

    Raises CorpusError where a path or requests file is missing, UsageError where the calibration
    has no costs or a request leads outside the allowed root (default: its file's folder; of
    `lines`, the working folder).
    """
    with Scratch() as scratch:
        gate = _Gate(calibration.gate, scratch.path, calibration.counting)
        found = [(one, each) for one in data for each in resolve(one, given_as="NEW_DATA")]
        files = [
            RequestsSource(
                path,
                allowed_root=allowed_root,
                scratch=scratch.path,
                label=label,
            )
            for path, label in zip(requests, labels(requests), strict=True)
        ]
        for one, source in found:
            yield from gate.source(source, named=_named(one))
        for file in files:
            yield from map(gate.prompt, file.prompts())
        reader = RequestLines(os.getcwd(), allowed_root=allowed_root, scratch=scratch.path)
        for number, line in enumerate(lines, start=1):
            if text := line.strip():
                yield gate.line(text, f"line {number}", reader)


def _named(data: str | Path) -> str:
    """The path that its item has, if it is one file or object itself."""
    text = os.fspath(data)
    return os.path.abspath(text) if Location.of(text).is_file else text


def _says_media(path: str, named: str) -> bool:
    """Whether it was asked for itself, or its name ends as those of media do."""
    return path == named or ending_of(path.partition(BEHIND)[0]) in SAYS_MEDIA


class _Gate:
    """Answers for what was found on disk; inline media are removed once they are answered for."""

    def __init__(self, gate: Gate, scratch: Path, counting: Counting | None) -> None:
        self._gate, self._scratch = gate, os.path.realpath(scratch)
        self._counting = counting

    def source(self, source: Source, *, named: str) -> Iterator[Checked | Skipped]:
        """The file that was `named` must be media, and so must one whose name says that it is."""
        for found in source.items():
            seen = examine_whole(found) if isinstance(found, Item) else found
            if isinstance(seen, Skipped) and seen.no_media and not _says_media(found.path, named):
                yield seen
            else:
                yield self._seen(found.path, seen)

    def _seen(self, path: str, seen: Encoded | Skipped) -> Checked:
        if isinstance(seen, Skipped):
            return Checked(path, "item", (), unreadable(seen.reason))
        return Checked(path, "item", (seen.shape,), self._admitted(seen))

    def prompt(self, prompt: Prompt | Skipped) -> Checked:
        if isinstance(prompt, Skipped):
            return Checked(prompt.path, "prompt", (), unusable(prompt.reason))
        try:
            files, answer = admitted_prompt(self._gate, prompt, self._counting)
        finally:
            self._forget(prompt.items)
        return Checked(prompt.origin, "prompt", tuple(file.shape for file in files), answer)

    def line(self, text: bytes, origin: str, reader: RequestLines) -> Checked:
        """A JSON object is a chat request; everything else is a path or a URL."""
        if text.startswith(b"{"):
            return self.prompt(reader.prompt(origin, text))
        item = item_named(os.fsdecode(text))
        seen = examine_whole(item) if isinstance(item, Item) else item
        # What carries its bytes has no other name.
        return self._seen(origin if item.path == NOWHERE else item.path, seen)

    def _admitted(self, file: Encoded) -> Admission:
        return with_remedy(self._gate, file, admit(self._gate, file))

    def _forget(self, items: Iterable[Item]) -> None:
        for item in items:
            if os.path.dirname(item.path) == self._scratch:
                with suppress(OSError):
                    os.unlink(item.path)
