"""What came of one check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from mmcalib.result.part import DocumentPart


class CheckResult(DocumentPart):
    name: str
    status: Literal["pass", "warn", "fail", "skip"]
    detail: str
    remedy: str = ""


def first_failed(checks: Iterable[CheckResult]) -> CheckResult:
    """The one to name where the verdict is no."""
    return next(check for check in checks if check.status == "fail")
