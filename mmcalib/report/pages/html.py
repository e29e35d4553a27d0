"""`report.html`: one page with figures, and pictures of the costliest items."""

from __future__ import annotations

from mmcalib.report.html.page import page
from mmcalib.report.report import Report
from mmcalib.report.report_format import ReportFormat


def html(report: Report) -> str:
    """The page."""
    return page(
        report.shown,
        report.command,
        report.items,
        report.before_after,
        thumbnails=report.thumbnails,
        redacted=report.redact_paths,
    )


RENDERER = ReportFormat("html", html, pictures=True)
