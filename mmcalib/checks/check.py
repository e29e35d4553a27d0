"""A check and its result, with remedies as flags or as lines of YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, TypeVar

from mmcalib.checks.catalogue import CheckId
from mmcalib.text import flag, gib

Status = Literal["pass", "warn", "fail", "skip"]
Verdict = Literal["pass", "fail"]

T = TypeVar("T")

REPORT_BUG: Final = "please report this bug"
CHANGE_SETTING: Final = "change the setting that it names"


@dataclass(frozen=True, slots=True)
class Taken:
    """A row of the memory table: at most `nbytes`, *computed*."""

    what: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Check:
    """One result. `remedy` has an alternative on each line, the harmless one first. `names` are the
    parts of its words that are file names, or that come from elsewhere and may contain some: a
    redacted report replaces them. `taken` is memory that an option takes beyond the profile.
    """

    id: CheckId
    status: Status
    detail: str
    remedy: str = ""
    names: tuple[str, ...] = ()
    taken: Taken | None = None

    @property
    def code(self) -> str:
        return self.id.code

    @property
    def name(self) -> str:
        return self.id.name


def verdict(checks: Iterable[Check]) -> Verdict:
    """Return fail if any check failed; warnings and skipped checks do not count."""
    return "fail" if any(check.status == "fail" for check in checks) else "pass"


def computed_size(nbytes: int | None) -> str:
    """Such as ` (2.10 GiB, computed)`; empty if unknown."""
    return "" if nbytes is None else f" ({gib(nbytes)}, computed)"


class RemedyStyle(Enum):
    """The words of a remedy: `FLAGS` of `mmcalib run`, or `LINES` of the file under `validate`."""

    FLAGS = "flags"
    LINES = "lines"

    def choose(self, *, flags: T, lines: T) -> T:
        return flags if self is RemedyStyle.FLAGS else lines

    def number(self, value: int) -> str:
        return self.choose(flags=f"{value}", lines=f"{value:,}")

    def setting(self, name: str, value: Any) -> str:
        """The flag or line that sets an option of vLLM."""
        return self.choose(flags=f"{flag(name)} {value}", lines=yaml_line(name, value))


def yaml_value(value: Any) -> str:
    """A value on one line of YAML, such as `{video: 0}`."""
    import yaml  # documents import this module, and need no YAML

    words = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 30)
    return words.removesuffix("\n").removesuffix("\n...")


def yaml_line(name: str, value: Any) -> str:
    """One setting on one line of YAML, such as `limit-mm-per-prompt: {video: 0}`."""
    return f"{name.replace('_', '-')}: {yaml_value(value)}"


def yaml_lines(settings: Mapping[str, Any]) -> str:
    """The lines of several settings, as alternatives of a remedy name them."""
    return " and ".join(map(yaml_line, settings, settings.values()))
