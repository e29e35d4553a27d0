"""One finding: what was checked, how it went, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "warn", "fail", "skip"]
Verdict = Literal["pass", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """`remedy` is empty where nothing needs doing."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def verdict(checks: Iterable[Check]) -> Verdict:
    """One failed check is a no; warnings and skipped checks are not."""
    return "fail" if any(check.status == "fail" for check in checks) else "pass"
