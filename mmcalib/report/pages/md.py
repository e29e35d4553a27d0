"""`report.md`: the same for a terminal or an issue."""

from __future__ import annotations

from mmcalib.report.markdown import markdown
from mmcalib.report.report import Report
from mmcalib.report.report_format import ReportFormat


def md(report: Report) -> str:
    """As Markdown."""
    return markdown(report.shown, report.command)


RENDERER = ReportFormat("md", md)
