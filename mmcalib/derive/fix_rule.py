"""A fix as the catalogue has it: what it needs, and which changes it proposes at which price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmcalib.derive.facts import Facts
from mmcalib.derive.fix import Fix
from mmcalib.derive.goal import Goal
from mmcalib.derive.kept import NOTHING_KEPT, Keep


@dataclass(frozen=True, slots=True)
class Unfixed:
    """The configuration as it is, the goal that it does not reach, and what no fix may touch."""

    engine_args: Mapping[str, Any]
    facts: Facts
    goal: Goal
    kept: Keep = NOTHING_KEPT


def _nothing(_: Unfixed) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class FixRule:
    """The fixes of one or several knobs, the mildest level of each knob first. `place` is the one
    among all rules: a report shows fixes of the same cost in this order.

    A rule is left out where the configuration is not as it `needs` it.
    """

    place: int
    propose: Callable[[Unfixed], Iterable[Fix]]
    needs: Callable[[Unfixed], bool] = _nothing
