"""What came of one check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from mmcalib.checks.check import ASSUMED, KEEP, NOT_STARTED
from mmcalib.result.part import DocumentPart


class CheckResult(DocumentPart):
    """`names` are the parts of its words that are names of files, or foreign and may hold some."""

    name: str
    status: Literal["pass", "warn", "fail", "skip"]
    detail: str
    remedy: str = ""
    names: list[str] = Field(default_factory=list)

    @property
    def remedies(self) -> list[str]:
        """The alternatives, the harmless one first."""
        return self.remedy.splitlines()


def verdict_words(verdict: str, checks: Iterable[CheckResult], losses: Sequence[str] = ()) -> str:
    """`pass, on 1 assumption · videos keep 48% of their tokens … · 2 warnings`: a pass with what it
    rests on, what quality it costs, what to look at, and what no engine was started with here.
    """
    if verdict == "fail":
        return verdict
    checks = list(checks)
    warned = [check for check in checks if check.status == "warn"]
    assumptions = len(assumed(warned))
    others = len(warned) - assumptions
    said = [f"{verdict}, on {_many(assumptions, 'assumption')}" if assumptions else verdict]
    said += [check.name for check in checks if check.name == KEEP]
    said += losses
    said += [_many(others, "warning")] if others else []
    said += [check.name for check in checks if check.name.startswith(NOT_STARTED)]
    return " · ".join(said)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def assumed(checks: Iterable[CheckResult]) -> list[CheckResult]:
    """Those of what nobody said."""
    return [c for c in checks if c.status == "warn" and c.name.startswith(ASSUMED)]


def first_failed(checks: Iterable[CheckResult]) -> CheckResult:
    """The one to name where the verdict is no."""
    return next(check for check in checks if check.status == "fail")
