"""Answers of `mmcalib check`: one line per item that does not fit, counts, and a summary."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from mmcalib.domain.shapes import Shape
from mmcalib.gate.admission import Admission, Answer, Basis
from mmcalib.results.part import DocumentPart

_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class CheckedItem:
    """The answer for one item or prompt; `shapes` is empty if nothing could be read. A prompt that
    repeats the messages of an earlier one is the next `turn` of its `session`, the first prompt.
    `by_path`: it names a file by its path. `given`: at least one of its items has no file.
    """

    origin: str
    kind: Literal["item", "prompt"]
    shapes: tuple[Shape, ...]
    admission: Admission
    session: str = ""
    turn: int = 1
    by_path: bool = False
    given: bool = False


@dataclass(slots=True)
class Sessions:
    """Sessions of several turns, and the first rejected turn of each."""

    _first: dict[str, CheckedItem] = field(default_factory=dict)
    _grown: set[str] = field(default_factory=set)

    def add(self, checked: CheckedItem) -> None:
        if checked.turn > 1:
            self._grown.add(checked.session)
        if checked.session and checked.admission.answer == "no":
            self._first.setdefault(checked.session, checked)

    def failures(self) -> list[CheckedItem]:
        return [checked for name, checked in self._first.items() if name in self._grown]


@dataclass(slots=True)
class ReasonCount:
    """Rejections with one reason, numbers aside; `same_remedy`: all have this `remedy`."""

    kind: str
    answer: Answer
    pattern: str
    remedy: str
    count: int = 0
    same_remedy: bool = True
    examples: list[CheckedItem] = field(default_factory=list)
    least: list[str] = field(default_factory=list)
    most: list[str] = field(default_factory=list)

    def add(self, numbers: list[str], remedy: str, example: CheckedItem | None) -> None:
        self.count += 1
        self.same_remedy &= remedy == self.remedy
        if example and len(self.examples) < _EXAMPLES:
            self.examples.append(example)
        both = [*zip(self.least or numbers, self.most or numbers, numbers, strict=True)]
        self.least = [min(numbers, key=_value) for numbers in both]
        self.most = [max(numbers, key=_value) for numbers in both]

    @property
    def reason(self) -> str:
        """The shared reason, with the range of each number."""
        ranges = iter(zip(self.least, self.most, strict=True))

        def format_range(_: re.Match[str]) -> str:
            least, most = next(ranges)
            return least if least == most else f"{least} to {most}"

        return _NUMBER.sub(format_range, self.pattern)


def _value(number: str) -> float:
    return float(number.replace(",", ""))


class ReasonCounts:
    """Counts rejections by reason, ignoring the numbers in it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Answer, str], ReasonCount] = {}

    def add(self, kind: str, admission: Admission, example: CheckedItem | None = None) -> None:
        reason = admission.unread or admission.reason
        key = kind, admission.answer, _NUMBER.sub("0", reason)
        if key not in self._counts:
            self._counts[key] = ReasonCount(*key, admission.remedy)
        self._counts[key].add(_NUMBER.findall(reason), admission.remedy, example)

    def largest_first(self) -> list[ReasonCount]:
        return sorted(self._counts.values(), key=lambda one: -one.count)


class Offender(DocumentPart):
    """One item or request that does not fit."""

    kind: Literal["item", "prompt"]
    origin: str
    session: str = Field(description="First request of its chat; empty for items")
    turn: int = Field(description="From 1")
    answer: Answer
    tokens: int | None
    embeds: int | None
    exact: bool = Field(description="False: `tokens` and `embeds` are upper bounds")
    basis: Basis
    reason: str
    remedy: str
    largest: Shape | None = Field(description="Largest shape that would fit")
    shapes: tuple[Shape, ...]


class Summary(DocumentPart):
    """The last line of a check."""

    kind: Literal["summary"]
    all_fit: bool
    share: float = Field(description="Share that does not fit")
    checked: int
    skipped: int
    fits: int
    no: int
    unknown: int
    given: int = Field(description="Answers for items given by size, without a file")
    counted_by: str = Field(description="Processor that counted their tokens")
