"""One figure or setting beside itself in another release of vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FigureGroup = Literal[
    "item_tokens",
    "item_cache_bytes",
    "budget",
    "memory",
    "engine",
    "server",
    "knob",
    "effect",
    "setting",
    "default",
    "option",
]
FigureUnit = Literal["tokens", "bytes", "items", "requests", ""]
FigureLabel = Literal["measured", "rehearsed", "computed", "assumed"]
FigureValue = int | float | str | None


@dataclass(frozen=True, slots=True)
class ReleaseFigure:
    """`before` and `after` are in `unit`; words, or numbers without one, where it is empty. None
    where that release has no such thing, or it could not be had.
    """

    group: FigureGroup
    name: str
    unit: FigureUnit
    before: FigureValue
    after: FigureValue
    label: FigureLabel

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def difference(self) -> int | float | None:
        """After − before, of numbers."""
        if isinstance(self.before, str) or isinstance(self.after, str):
            return None
        if self.before is None or self.after is None:
            return None
        return self.after - self.before
