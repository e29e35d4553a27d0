"""Check lines, drift, requests."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, Self

from mmcalib.derive.admission import Admission, Answer, Basis
from mmcalib.domain.shapes import Shape
from mmcalib.results.part import DocumentPart

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Checked:
    """One item or prompt, its path or place, and the answer; no `shapes` where nothing was read."""

    origin: str
    kind: Literal["item", "prompt"]
    shapes: tuple[Shape, ...]
    admission: Admission


@dataclass(slots=True)
class Tally:
    """How many of each answer; `skipped` were no media and lay in a folder."""

    answers: dict[Answer, int] = field(default_factory=lambda: {"fits": 0, "no": 0, "unknown": 0})
    skipped: int = 0

    @property
    def checked(self) -> int:
        return sum(self.answers.values())

    def offenders(self, *, allow_unknown: bool) -> int:
        """How many keep the data from fitting."""
        return self.answers["no"] + (0 if allow_unknown else self.answers["unknown"])


@dataclass(slots=True)
class ReasonCount:
    """How many were turned away for one reason, whose numbers may differ; `same_remedy`: all have
    the first's `remedy`. `examples` are the first few.
    """

    kind: str
    answer: Answer
    pattern: str
    remedy: str
    count: int = 0
    same_remedy: bool = True
    examples: list[Checked] = field(default_factory=list)
    least: list[str] = field(default_factory=list)
    most: list[str] = field(default_factory=list)

    def add(self, numbers: list[str], remedy: str, example: Checked | None) -> None:
        self.count += 1
        self.same_remedy &= remedy == self.remedy
        if example and len(self.examples) < _EXAMPLES:
            self.examples.append(example)
        both = [*zip(self.least or numbers, self.most or numbers, numbers, strict=True)]
        self.least = [min(numbers, key=float) for numbers in both]
        self.most = [max(numbers, key=float) for numbers in both]

    @property
    def reason(self) -> str:
        """With the range of each number that differs."""
        ranges = iter(zip(self.least, self.most, strict=True))

        def both(_: re.Match[str]) -> str:
            least, most = next(ranges)
            return least if least == most else f"{least} to {most}"

        return _NUMBER.sub(both, self.pattern)


class ReasonCounts:
    """Counts of reasons: those that have the same words but for numbers are one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Answer, str], ReasonCount] = {}

    def add(self, kind: str, admission: Admission, example: Checked | None = None) -> None:
        """One that was turned away."""
        reason = admission.unread or admission.reason
        key = kind, admission.answer, _NUMBER.sub("0", reason)
        if key not in self._found:
            self._found[key] = ReasonCount(*key, admission.remedy)
        self._found[key].add(_NUMBER.findall(reason), admission.remedy, example)

    def largest_first(self) -> list[ReasonCount]:
        return sorted(self._found.values(), key=lambda one: -one.count)


class Offender(DocumentPart):
    """One item or request that does not fit, on a line of its own."""

    kind: Literal["item", "prompt"]
    origin: str
    answer: Answer
    tokens: int | None
    embeds: int | None
    exact: bool
    basis: Basis
    reason: str
    remedy: str
    largest: Shape | None
    shapes: tuple[Shape, ...]

    @classmethod
    def of(cls, checked: Checked) -> Self:
        """Of what does not fit."""
        kind, origin = checked.kind, checked.origin
        return cls.showing(checked.admission, kind=kind, origin=origin, shapes=checked.shapes)


class Summary(DocumentPart):
    """The last line of a check; `share` of what was checked does not fit."""

    kind: Literal["summary"]
    all_fit: bool
    share: float
    checked: int
    skipped: int
    fits: int
    no: int
    unknown: int

    @classmethod
    def of(cls, tally: Tally, *, all_fit: bool, share: float) -> Self:
        """Counts, whether the data fits as a whole, and the share that does not."""
        return cls.showing(tally, kind="summary", all_fit=all_fit, share=share, **tally.answers)
