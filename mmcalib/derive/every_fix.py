"""The fixes of all modules in `fixes`, each at its place, for one configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from mmcalib.derive import fixes
from mmcalib.derive.discovered import modules_in
from mmcalib.derive.facts import Facts
from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed
from mmcalib.derive.goal import Goal
from mmcalib.derive.kept import NOTHING_KEPT, Keep


def every_fix(
    engine_args: Mapping[str, Any], facts: Facts, goal: Goal, kept: Keep = NOTHING_KEPT
) -> list[Fix]:
    """Fixes that would change these engine arguments, the mildest level of each knob first."""
    unfixed = Unfixed(engine_args, facts, goal, kept)
    rules = [rule for rule in every_rule() if rule.needs(unfixed)]
    return [fix for rule in rules for fix in rule.propose(unfixed) if kept.allows(fix)]


@cache
def every_rule() -> tuple[FixRule, ...]:
    """A module of `fixes` has its rules in `RULES`; there is no list of modules."""
    found: list[FixRule] = [rule for module in modules_in(fixes) for rule in module.RULES]
    return tuple(sorted(found, key=lambda rule: rule.place))
