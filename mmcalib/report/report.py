"""Report: what every page shows; pages written as files."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import ConfigDict
from rich.console import Console

from mmcalib.report.formats import ConfigurationName, ReportName
from mmcalib.report.html.items import CostlyItem, costly
from mmcalib.report.html.page import page
from mmcalib.report.html.redact import redacted
from mmcalib.report.html.roots import Roots
from mmcalib.report.markdown import issue, markdown
from mmcalib.report.terminal import summary
from mmcalib.results.calibration import SERVE, CalibrationDocument, serving
from mmcalib.results.part import DocumentPart


@dataclass(frozen=True)
class Report:
    """`serve_with` is the command that serves the configuration, which is shown with the limits on
    media that were raised for it. With `redact_paths` no file of the corpus is named, nor a folder
    of this machine; with `thumbnails` the page shows the costliest items, whose files are read for
    it: all of them, or those that `roots` hold. A calibration that was not made here and now may
    name any file, so that it needs some.
    """

    calibration: CalibrationDocument
    serve_with: str
    thumbnails: bool = True
    redact_paths: bool = False
    roots: Roots | None = None

    @property
    def shown(self) -> CalibrationDocument:
        """As it may be seen."""
        return self._shown[0]

    @property
    def command(self) -> str:
        """What serves the configuration, as it may be seen."""
        return self._shown[1]

    @cached_property
    def items(self) -> list[CostlyItem]:
        """The costliest items, as the page shows them."""
        return costly(
            self.calibration,
            thumbnails=self.thumbnails,
            names=self._shown[2],
            roots=self.roots,
        )

    @cached_property
    def _shown(self) -> tuple[CalibrationDocument, str, dict[str, str] | None]:
        server = self.calibration.server
        if not self.redact_paths:
            return self.calibration, serving(server, self.serve_with), None
        clean, names = redacted(self.calibration)
        return clean, serving(server, SERVE), names


def html(report: Report) -> str:
    """One page with figures, and pictures of the costliest items."""
    return page(
        report.shown,
        report.command,
        report.items,
        thumbnails=report.thumbnails,
        redacted=report.redact_paths,
    )


def md(report: Report) -> str:
    """The same as Markdown."""
    return markdown(report.shown, report.command)


def text(report: Report) -> str:
    """The summary that `mmcalib run` ends with, without colours."""
    page = io.StringIO()
    summary(report.shown, Console(file=page, highlight=False))
    return page.getvalue()


# By the names and in the order of `formats.REPORT_NAMES`.
REPORTS: Final[Mapping[str, Callable[[Report], str]]] = {
    "html": html,
    "md": md,
    "text": text,
    "issue": lambda report: issue(report.calibration),
}


class WrittenReport(DocumentPart):
    """What `report --json` wrote, and where."""

    model_config = ConfigDict(title="Written")

    written: str
    format: Literal[ReportName, ConfigurationName]
    bytes: int

    @classmethod
    def of(cls, path: Path, name: str) -> Self:
        """Of a file that is there."""
        found = {"written": str(path), "format": name, "bytes": path.stat().st_size}
        return cls.model_validate(found)
