"""A form of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmcalib.report.report import Report


@dataclass(frozen=True, slots=True)
class ReportFormat:
    """`pictures`: it shows those of the costliest items."""

    suffix: str
    text: Callable[[Report], str]
    pictures: bool = False

    @property
    def file(self) -> str:
        """The name of the file that it is kept in."""
        return f"report.{self.suffix}"

    def render(self, report: Report) -> str:
        return self.text(report)
