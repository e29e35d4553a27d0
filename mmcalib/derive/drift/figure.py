"""One figure of traffic, today's beside the calibrated one, and whether they are alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

# shown: nothing was calibrated that it could be held against.
Likeness = Literal["same", "shifted", "unknown", "shown"]
Unit = Literal["tokens", "items", "share", "count"]

# Half as much again, or a third less. A choice: no traffic was watched for it.
FACTOR: Final = 1.5
# A choice, too: of fewer a quantile above the median is one request's.
FEWEST: Final = 30
# Standard deviations of a count, beyond which one in 400 is by chance.
_DEVIATIONS: Final = 3.0


@dataclass(frozen=True, slots=True)
class DriftFigure:
    """`today` and `calibrated` in base units, None where nobody knows; the same where `today` is
    between `least` and `most`. `meaning` says what it can show, and what it cannot.
    """

    name: str
    unit: Unit
    likeness: Likeness
    today: float | None
    calibrated: float | None
    least: float | None
    most: float | None
    meaning: str


def shown(
    name: str,
    unit: Unit,
    today: float | None,
    calibrated: float | None,
    meaning: str,
) -> DriftFigure:
    """A figure that is not judged."""
    return DriftFigure(name, unit, "shown", today, calibrated, None, None, meaning)


def no_more(
    name: str,
    unit: Unit,
    today: float | None,
    most: float,
    meaning: str,
    calibrated: float | None = None,
) -> DriftFigure:
    """A figure that may be less, and not more."""
    likeness: Likeness = "unknown" if today is None else "same" if today <= most else "shifted"
    return DriftFigure(name, unit, likeness, today, calibrated, None, most, meaning)


def alike(
    name: str,
    unit: Unit,
    today: float | None,
    calibrated: float | None,
    seen: int,
    meaning: str,
) -> DriftFigure:
    """A figure that may be by `FACTOR` more or less; unknown where fewer than `FEWEST` are seen."""
    return between(name, unit, today, (calibrated, calibrated), seen, meaning)


def between(
    name: str,
    unit: Unit,
    today: float | None,
    calibrated: tuple[float | None, float | None],
    seen: int,
    meaning: str,
) -> DriftFigure:
    """The same where the calibrated figure is known to lie in a range."""
    low, high = calibrated
    middle = low if low == high else None
    if low is None or high is None or today is None or seen < FEWEST:
        return DriftFigure(name, unit, "unknown", today, middle, low, high, meaning)
    least, most = low / FACTOR, high * FACTOR
    likeness: Likeness = "same" if least <= today <= most else "shifted"
    return DriftFigure(name, unit, likeness, today, middle, least, most, meaning)


def items_per_request(
    name: str, items: int, requests: int, calibrated: float | None, meaning: str
) -> DriftFigure:
    """A mean of counts: the same also where chance alone may have made the difference."""
    today = items / requests if requests else None
    found = alike(name, "items", today, calibrated, requests, meaning)
    if found.likeness == "shifted" and calibrated is not None:
        expected = calibrated * requests
        if abs(items - expected) <= _DEVIATIONS * math.sqrt(max(expected, 1.0)):
            return replace(found, likeness="same")
    return found


def shifted(figures: Iterable[DriftFigure]) -> list[DriftFigure]:
    """Those that are not what was calibrated."""
    return [figure for figure in figures if figure.likeness == "shifted"]
