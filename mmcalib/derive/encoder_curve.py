"""The encoder's peak as a function of the tokens that one batch makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression

# Of the highest peak: what the allocator's rounding and kernels' scratch put on top of a line.
_NOISE = 0.02
# A square must explain most of what a line leaves.
_EXPLAINS = 0.5
# Several items take less than this more than one of as many tokens, by scratch and rounding, unless
# each of them takes what its tokens do not say: padding to one length, say.
_TOGETHER = 0.1
# With fewer sizes a line, or a parabola, goes through any points.
_LEAST_FOR_LINE, _LEAST_FOR_SQUARE = 3, 5


@dataclass(frozen=True, slots=True)
class Curve:
    """Bytes = constant + per token · tokens + per token² · tokens²."""

    constant_bytes: float
    bytes_per_token: float
    bytes_per_token_squared: float = 0.0

    def at(self, tokens: float) -> float:
        square = self.bytes_per_token_squared * tokens**2
        return self.constant_bytes + self.bytes_per_token * tokens + square


def fit(points: Sequence[tuple[int, int]]) -> Curve | None:
    """The least squares through (tokens, bytes); None with fewer than three sizes.

    The square is there only where a line leaves more than noise and the square explains most of
    it, as growth: attention that holds scores for every pair of tokens.
    """
    known = len({tokens for tokens, _ in points})
    if known < _LEAST_FOR_LINE:
        return None
    line = _line(points)
    left = residuals(line, points)
    if known < _LEAST_FOR_SQUARE or max(map(abs, left)) <= _NOISE * max(b for _, b in points):
        return line
    curve = _parabola(points, left)
    better = _rms(residuals(curve, points)) <= _EXPLAINS * _rms(left)
    return curve if better and curve.bytes_per_token_squared > 0 else line


def residuals(curve: Curve, points: Sequence[tuple[int, int]]) -> list[float]:
    """Bytes above the curve, per point."""
    return [found - curve.at(tokens) for tokens, found in points]


def costlier_together(
    single: Sequence[tuple[int, int]], several: Sequence[tuple[int, int]]
) -> tuple[int, float] | None:
    """Of several items at once, the tokens that take most against the curve of single ones, and
    how many times as much; None where memory goes by tokens.
    """
    curve = fit(single)
    if curve is None or not several:
        return None
    ratios = [(tokens, found / max(1.0, curve.at(tokens))) for tokens, found in several]
    worst = max(ratios, key=lambda ratio: ratio[1])
    return worst if worst[1] > 1 + _TOGETHER else None


def _line(points: Sequence[tuple[int, int]]) -> Curve:
    slope, constant = linear_regression(*zip(*points, strict=True))
    return Curve(constant, slope)


def _parabola(points: Sequence[tuple[int, int]], left: Sequence[float]) -> Curve:
    """What is left of bytes against what is left of the square, each after a line through the
    tokens: its slope is the square's of the full least squares (Frisch and Waugh).
    """
    tokens = [t for t, _ in points]
    squares = [t * t for t in tokens]
    bent, start = linear_regression(tokens, squares)
    rest = [s - (start + bent * t) for s, t in zip(squares, tokens, strict=True)]
    square = linear_regression(rest, left, proportional=True).slope
    straight = [b - square * s for (_, b), s in zip(points, squares, strict=True)]
    slope, constant = linear_regression(tokens, straight)
    return Curve(constant, slope, square)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))
