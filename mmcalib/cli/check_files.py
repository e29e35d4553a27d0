"""The files that `mmcalib check` writes for CI systems, where it is asked to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mmcalib.corpus.requests import labels
from mmcalib.errors import UsageError
from mmcalib.files import write_text
from mmcalib.report.junit import junit_xml
from mmcalib.report.sarif import sarif_json
from mmcalib.result.check_lines import Offender, Summary
from mmcalib.result.checked import Checked

# GitHub takes 25,000 results of a run, and shows 5,000.
_MOST: Final = 25_000


class CheckFiles:
    """Keeps what does not fit until the counts are known, none where no file is asked for. Files
    of an earlier check are replaced. Raises UsageError for a folder.
    """

    def __init__(self, junit: Path | None, sarif: Path | None, requests: Sequence[Path]) -> None:
        for name, path in (("--junit", junit), ("--sarif", sarif)):
            if path is not None and path.is_dir():
                raise UsageError(f"{name} {path} is a folder", hint=f"{name} FILE")
        self._junit, self._sarif = junit, sarif
        self._requests = dict(zip(labels(requests), requests, strict=True))
        self._wanted = junit is not None or sarif is not None
        self._kept: list[Offender] = []

    def add(self, checked: Checked) -> None:
        """Something that does not fit."""
        if self._wanted and len(self._kept) < _MOST:
            self._kept.append(Offender.of(checked))

    def write(self, summary: Summary, *, allow_unknown: bool) -> None:
        """Raises OutputError."""
        if self._junit is not None:
            write_text(self._junit, junit_xml(self._kept, summary, allow_unknown=allow_unknown))
        if self._sarif is not None:
            text = sarif_json(
                self._kept,
                summary,
                allow_unknown=allow_unknown,
                root=Path.cwd(),
                requests=self._requests,
            )
            write_text(self._sarif, text)
