"""New data against a calibration: headers are read, nothing is decoded, no engine is needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from mmcalib.corpus.folder import FolderSource
from mmcalib.corpus.request_line import RequestLines
from mmcalib.corpus.requests import RequestsSource
from mmcalib.derive.admission import Admission, Gate, admit
from mmcalib.derive.remedies import with_remedy
from mmcalib.domain.encoding import Encoded
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.media.ending import examine_whole
from mmcalib.result.checked import Checked
from mmcalib.scratch import Scratch
from mmcalib.texts.counting import Counting
from mmcalib.workflows.gate.calibration import Calibration
from mmcalib.workflows.gate.presented import admitted_prompt, unreadable


def check(
    calibration: Calibration,
    paths: Sequence[Path] = (),
    requests: Sequence[Path] = (),
    lines: Iterable[bytes] = (),
    *,
    allowed_root: Path | None = None,
) -> Iterator[Checked | Skipped]:
    """One answer per item and prompt, as they come: files and folders, requests, then `lines`, each
    a path or a chat request. `Skipped` are files in folders that are no media.

    Raises CorpusError where a path or requests file is missing, UsageError where the calibration
    has no costs or a request leads outside the allowed root (default: its file's folder; of
    `lines`, the working folder).
    """
    with Scratch() as scratch:
        gate = _Gate(calibration.gate, scratch.path, calibration.counting)
        folders = [FolderSource(path, given_as="NEW_DATA") for path in paths]
        files = [
            RequestsSource(path, allowed_root=allowed_root, scratch=scratch.path)
            for path in requests
        ]
        for folder, path in zip(folders, paths, strict=True):
            yield from gate.folder(folder, named=not path.is_dir())
        for file in files:
            yield from map(gate.prompt, file.prompts())
        reader = RequestLines(os.getcwd(), allowed_root=allowed_root, scratch=scratch.path)
        for number, line in enumerate(lines, start=1):
            if text := line.strip():
                yield gate.line(text, f"line {number}", reader)


class _Gate:
    """Answers for what was found on disk; inline media are removed once they are answered for."""

    def __init__(self, gate: Gate, scratch: Path, counting: Counting | None) -> None:
        self._gate, self._scratch = gate, os.path.realpath(scratch)
        self._counting = counting

    def folder(self, source: FolderSource, *, named: bool) -> Iterator[Checked | Skipped]:
        """`named`: the source is one file that was asked for, so that it must be media."""
        for found in source.items():
            seen = examine_whole(found) if isinstance(found, Item) else found
            if isinstance(seen, Skipped) and seen.no_media and not named:
                yield seen
            else:
                yield self._seen(found.path, seen)

    def _seen(self, path: str, seen: Encoded | Skipped) -> Checked:
        if isinstance(seen, Skipped):
            return Checked(path, "item", (), unreadable(seen.reason))
        return Checked(path, "item", (seen.shape,), self._admitted(seen))

    def prompt(self, prompt: Prompt | Skipped) -> Checked:
        if isinstance(prompt, Skipped):
            return Checked(prompt.path, "prompt", (), unreadable(prompt.reason))
        try:
            files, answer = admitted_prompt(self._gate, prompt, self._counting)
        finally:
            self._forget(prompt.items)
        return Checked(prompt.origin, "prompt", tuple(file.shape for file in files), answer)

    def line(self, text: bytes, origin: str, reader: RequestLines) -> Checked:
        """A JSON object is a chat request; everything else is a path."""
        if text.startswith(b"{"):
            return self.prompt(reader.prompt(origin, text))
        item = Item(os.path.abspath(os.fsdecode(text)))
        return self._seen(item.path, examine_whole(item))

    def _admitted(self, file: Encoded) -> Admission:
        return with_remedy(self._gate, file, admit(self._gate, file))

    def _forget(self, items: Iterable[Item]) -> None:
        for item in items:
            if os.path.dirname(item.path) == self._scratch:
                with suppress(OSError):
                    os.unlink(item.path)
