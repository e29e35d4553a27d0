"""Every check: its code, its constant here, its name and explanation, from `checks.txt`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final

from mmcalib.errors import UsageError


@dataclass(frozen=True, slots=True)
class CheckId:
    """A check. `about` replaces the `…` in its name."""

    code: str
    pattern: str
    explanation: str
    about: str = ""

    @property
    def name(self) -> str:
        return self.pattern.replace("…", self.about or "…")

    def of(self, about: str) -> CheckId:
        return replace(self, about=about)


_BY_CONSTANT: Final[dict[str, CheckId]] = {}


def _read_table() -> dict[str, dict[str, CheckId]]:
    """The checks by heading and code. A code never moves to another check."""
    groups: dict[str, dict[str, CheckId]] = {}
    group: dict[str, CheckId] = {}
    for line in files("mmcalib.checks").joinpath("checks.txt").read_text("utf-8").splitlines():
        code, *texts = line.split(" | ")
        if texts:
            constant, *texts = texts
            group[code] = _BY_CONSTANT[constant] = CheckId(code, *texts)
        else:
            group = groups[line] = {}
    return groups


GROUPS: Final = _read_table()
CHECKS: Final = {code: check for group in GROUPS.values() for code, check in group.items()}


def check_of_code(code: str) -> CheckId:
    """The check of a code. Raises UsageError for an unknown one."""
    found = CHECKS.get(code.upper())
    if found is None:
        near = difflib.get_close_matches(code.upper(), CHECKS, n=1)
        hint = " ".join(["mmcalib list checks", *near])
        raise UsageError(f"no check has the code {code}", hint=hint)
    return found


def __getattr__(constant: str) -> CheckId:
    """The check of a constant, such as MEMORY_RESERVE."""
    try:
        return _BY_CONSTANT[constant]
    except KeyError:
        raise AttributeError(constant) from None
