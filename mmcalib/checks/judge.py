"""The rules of all modules of the catalogue, each at its place."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

from mmcalib.checks import catalogue
from mmcalib.checks.check import Check
from mmcalib.checks.facts import CheckFacts
from mmcalib.checks.rule import CheckStage, Rule


def judge(stage: CheckStage, facts: CheckFacts) -> Iterator[Check]:
    """What the rules of one stage find, in the order in which it would hurt."""
    for rule in rules(stage):
        if rule.needs <= facts.known:
            yield from rule.judge(facts)


@cache
def rules(stage: CheckStage) -> tuple[Rule, ...]:
    """A module of the catalogue has its rules in `RULES`; there is no list of modules."""
    found = [rule for rule in every_rule() if stage in rule.places]
    return tuple(sorted(found, key=lambda rule: rule.places[stage]))


@cache
def every_rule() -> tuple[Rule, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(catalogue.__path__))
    modules = [importlib.import_module(f"{catalogue.__name__}.{name}") for name in names]
    return tuple(rule for module in modules for rule in getattr(module, "RULES", ()))
