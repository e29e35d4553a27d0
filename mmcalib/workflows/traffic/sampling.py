"""Of requests too many to be served some: the heaviest, and a mixture of the others."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

import numpy as np

from mmcalib.domain.shape_columns import Column
from mmcalib.wording import number

T = TypeVar("T")

# Of more requests a sample is served.
MOST_REQUESTS: Final = 1000
_HEAVIEST: Final = 0.1
MIXTURE: Final = f"the heaviest {_HEAVIEST:.0%}, and others by chance"


def sample(every: Sequence[T], weights: Sequence[float], most: int, seed: int) -> list[T]:
    """At most so many, in their order: the heaviest, and others by chance."""
    if len(every) <= most:
        return list(every)
    order = sorted(range(len(every)), key=lambda index: -weights[index])
    heaviest = round(most * _HEAVIEST)
    rest = random.Random(seed).sample(order[heaviest:], most - heaviest)  # noqa: S311
    return [every[index] for index in sorted([*order[:heaviest], *rest])]


def sampled_rows(
    counts: Column, weights: Column, most: int, seed: int
) -> Iterator[tuple[int, int]]:
    """The same of rows that stand for `counts` each: the row of each that is chosen, and which of
    that row's it is.
    """
    ends = np.cumsum(counts)
    for place in _places(ends, weights, most, seed):
        row = int(ends.searchsorted(place, side="right"))
        yield row, place - int(ends[row] - counts[row])


def said_of_sample(served: int, of: int, what: str, which: str = MIXTURE) -> Iterator[str]:
    """In words, where not all are served."""
    if served < of:
        yield f"{number(served)} of {number(of)} {what}: {which}"


def _places(ends: Column, weights: Column, most: int, seed: int) -> Collection[int]:
    total = int(ends[-1])
    if total <= most:
        return range(total)
    heaviest = dict.fromkeys(islice(_heaviest(ends, weights), round(most * _HEAVIEST)))
    some = random.Random(seed).sample(range(total), most)  # noqa: S311
    others = [place for place in some if place not in heaviest]
    return sorted([*heaviest, *others[: most - len(heaviest)]])


def _heaviest(ends: Column, weights: Column) -> Iterator[int]:
    """Places of items, those of the heaviest row first."""
    for row in np.argsort(-weights, kind="stable"):
        yield from range(ends[row - 1] if row else 0, ends[row])
