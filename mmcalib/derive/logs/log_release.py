"""Which release of vLLM a log is of, and how that is known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

KnownBy = Literal["stated", "lines", "unknown"]

_RELEASE = re.compile(r"0\.(\d{1,3})(?:\.\d{1,3}){1,2}(?:\.?post\d{1,2})?", re.ASCII)
# "CUDA graph memory profiling is enabled (default since v0.21.0)" (v1/worker/gpu_worker.py).
_RESERVES_GRAPHS = 21
# Named as evidence; a start prints about ten.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class LogRelease:
    """`stated` is the version that the log names, `by_lines` the releases whose source has most of
    its messages at the lines that it prints. `evidence`: some of those, such as
    `gpu_worker.py:759`; `astray` are lines that these releases do not have.
    """

    stated: str | None = None
    by_lines: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    astray: tuple[str, ...] = ()

    @property
    def known_by(self) -> KnownBy:
        if self.stated:
            return "stated"
        return "lines" if self.by_lines else "unknown"

    @property
    def versions(self) -> tuple[str, ...]:
        """What it is taken for: one, or several that cannot be told apart; none where unknown."""
        return (self.stated,) if self.stated else self.by_lines

    @property
    def contradicts(self) -> bool:
        """Whether the version that it names is not the one of its lines."""
        return bool(self.stated and self.by_lines) and self.stated not in self.by_lines

    def may_be(self, version: str) -> bool:
        """Whether it can be of this version."""
        return version in self.versions


@dataclass(slots=True)
class LineVotes:
    """The releases of each line that names its place, as they are read."""

    found: dict[str, frozenset[str]] = field(default_factory=dict)

    def take(self, place: str, releases: frozenset[str]) -> None:
        self.found[place] = releases

    def release(self, stated: str | None, order: Iterable[str]) -> LogRelease:
        """What most of them have in common; `order` has every release once."""
        votes = Counter(release for releases in self.found.values() for release in releases)
        most = max(votes.values(), default=0)
        by_lines = tuple(release for release in order if most and votes[release] == most)
        own = [place for place, of in self.found.items() if of.intersection(by_lines)]
        astray = [place for place, of in self.found.items() if not of.intersection(by_lines)]
        return LogRelease(stated, by_lines, tuple(own[:_MOST_NAMED]), tuple(astray[:_MOST_NAMED]))


def reserves_no_graphs(version: str | None) -> bool:
    """Whether this release takes nothing off the KV cache for graphs, unless asked to."""
    found = _RELEASE.fullmatch(version or "")
    return found is not None and int(found.group(1)) < _RESERVES_GRAPHS


def release_words(release: LogRelease) -> str:
    """What the log is taken for and why."""
    told = ", ".join(release.evidence)
    by_lines = f"of vLLM {' or '.join(release.by_lines)} by the lines of source it names ({told})"
    if release.stated and release.contradicts:
        return (
            f"of vLLM {release.stated} as it says, and {by_lines}: mixed, edited or a patched vLLM"
        )
    if release.stated:
        return f"of vLLM {release.stated}, as it says"
    if release.by_lines:
        return by_lines
    if release.astray:
        return (
            f"of no known release: it does not name its version, and {', '.join(release.astray)} "
            "is none's from 0.23 to 0.33"
        )
    return "of an unknown release: it names neither its version nor lines of source"
