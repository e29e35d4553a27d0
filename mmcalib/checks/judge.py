"""The rules of all modules of the catalogue, each at its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from mmcalib.checks import catalogue
from mmcalib.checks.check import Check
from mmcalib.checks.facts import CheckFacts
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.checks.trap import Figures, Trap, TrapRule
from mmcalib.derive.discovered import modules_in


def judge(stage: CheckStage, facts: CheckFacts) -> Iterator[Check]:
    """What the rules of one stage find, in the order in which it would hurt."""
    for rule in rules(stage):
        if rule.needs <= facts.known:
            yield from rule.judge(facts)


@cache
def rules(stage: CheckStage) -> tuple[Rule, ...]:
    """A module of the catalogue has its rules in `RULES`, traps of options in `TRAPS`; there is no
    list of modules.
    """
    found = [rule for rule in every_rule() if stage in rule.places]
    return tuple(sorted(found, key=lambda rule: rule.places[stage]))


@cache
def every_rule() -> tuple[Rule, ...]:
    return tuple(rule for module in modules_in(catalogue) for rule in getattr(module, "RULES", ()))


def option_traps(
    engine_args: Mapping[str, Any], served: Mapping[str, Any], known: Figures
) -> Iterator[Trap]:
    """All traps of options beside limits, caps and hints, in the order in which they would hurt.
    `served` are all arguments of `vllm serve`.
    """
    for rule in _trap_rules():
        trap = rule.find(served if rule.of_server else engine_args, known)
        if trap is not None:
            yield trap


@cache
def _trap_rules() -> tuple[TrapRule, ...]:
    modules = modules_in(catalogue)
    found: list[TrapRule] = [rule for module in modules for rule in getattr(module, "TRAPS", ())]
    return tuple(sorted(found, key=lambda rule: rule.place))
