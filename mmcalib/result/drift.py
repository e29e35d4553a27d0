"""What `mmcalib drift --json` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

from mmcalib.derive.drift.figure import DriftFigure, Likeness, Unit, shifted
from mmcalib.result.part import DocumentPart


class DriftPart(DocumentPart):
    """One figure of traffic. It is the same while `today` is between `least` and `most`; null where
    nothing bounds it, or nobody knows.
    """

    name: str
    unit: Unit
    likeness: Likeness
    today: float | None
    calibrated: float | None
    least: float | None
    most: float | None
    meaning: str


class Drift(DocumentPart):
    """Whether traffic still fits what was calibrated: `shifted` where any figure is. `source` is
    what it was read from, `requests` how many it tells of.
    """

    verdict: Literal["fits", "shifted"]
    source: Literal["requests", "metrics"]
    requests: int
    figures: list[DriftPart]

    @classmethod
    def of(
        cls,
        source: Literal["requests", "metrics"],
        requests: int,
        figures: Iterable[DriftFigure],
    ) -> Self:
        found = list(figures)
        return cls(
            verdict="shifted" if shifted(found) else "fits",
            source=source,
            requests=requests,
            figures=[DriftPart.showing(figure) for figure in found],
        )

    @property
    def shifted(self) -> list[DriftPart]:
        return [figure for figure in self.figures if figure.likeness == "shifted"]
