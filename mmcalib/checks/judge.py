"""The rules of each stage, in the order in which what they find would hurt."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from mmcalib.checks import corpus, file, items, limits, options, reserve
from mmcalib.checks.check import Check
from mmcalib.checks.facts import CheckFacts, CheckStage

SUBJECTS = (corpus, file, items, limits, options, reserve)


def judge(stage: CheckStage, facts: CheckFacts) -> Iterator[Check]:
    """What the rules of one stage find."""
    placed = (
        (places[stage], rule)
        for subject in SUBJECTS
        for rule, places in subject.RULES.items()
        if stage in places
    )
    for _, rule in sorted(placed, key=itemgetter(0)):
        yield from rule(facts)
