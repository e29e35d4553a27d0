"""A check as the catalogue has it: where it runs, what it needs, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.facts import CheckFacts, Need


class CheckStage(Enum):
    """When checks are made: of `run` once it has decided; of `validate` once vLLM's budget for the
    file is known, and once the items of a corpus were measured under it.
    """

    DECIDED = "run"
    WRITTEN = "validate"
    MEASURED = "validate, with a corpus"


@dataclass(frozen=True, slots=True)
class Rule:
    """One check, or several that are found in one go. `places` has each stage that it runs at, with
    its place among the others there: checks stand in the order in which they would hurt.

    A rule is left out where something that it `needs` is not known.
    """

    ids: tuple[CheckId, ...]
    places: Mapping[CheckStage, int]
    judge: Callable[[CheckFacts], Iterable[Check]]
    needs: frozenset[Need] = frozenset()
