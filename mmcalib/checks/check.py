"""One finding: what was checked, how it went, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, TypeVar

Status = Literal["pass", "warn", "fail", "skip"]
Verdict = Literal["pass", "fail"]

# The check, and the verdict, where nothing beats vLLM's own settings.
KEEP: Final = "keep vLLM's defaults"
# The names of checks of what was assumed begin so.
ASSUMED: Final = "assumed "
# And of what no engine was started with here.
NOT_STARTED: Final = "not started with"


class NamedCheck(Protocol):
    """A check of a document, which has its name alone."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=NamedCheck)


@dataclass(frozen=True, slots=True)
class CheckId:
    """What a check is known by. The `pattern` of one that there may be several of has `{}` for the
    modality or the setting that it is `about`.
    """

    pattern: str
    about: str = ""

    @property
    def name(self) -> str:
        return self.pattern.format(self.about)

    def of(self, about: str) -> CheckId:
        return replace(self, about=about)

    def covers(self, other: CheckId) -> bool:
        """Whether the other is this one, whatever it is about."""
        return self.pattern == other.pattern

    def among(self, checks: Iterable[N]) -> Iterator[N]:
        return (check for check in checks if check.name == self.name)


@dataclass(frozen=True, slots=True)
class Check:
    """`remedy` has one alternative a line, the harmless one first; it is empty where nothing needs
    doing. `names` are the parts of its words that are names of files, or foreign and may hold some:
    a redacted report replaces them.
    """

    id: CheckId
    status: Status
    detail: str
    remedy: str = ""
    names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.id.name


def verdict(checks: Iterable[Check]) -> Verdict:
    """One failed check is a no; warnings and skipped checks are not."""
    return "fail" if any(check.status == "fail" for check in checks) else "pass"
