"""The bounds of a value, in the form that pydantic reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of a number; `holds` of any other value. It is annotated_types' GroupedMetadata by protocol,
    so that showing help does not import them.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    holds: Callable[[Any], bool] | None = None

    @property
    def __is_annotated_types_grouped_metadata__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[object]:
        from annotated_types import Ge, Gt, Le, Lt, Predicate

        if self.at_least is not None:
            yield Ge(self.at_least)
        if self.above is not None:
            yield Gt(self.above)
        if self.at_most is not None:
            yield Le(self.at_most)
        if self.below is not None:
            yield Lt(self.below)
        if self.holds is not None:
            yield Predicate(self.holds)
