"""The rules of all modules of the catalogue, each at its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from mmcalib.checks.check import Check, Figures, Trap, TrapRule
from mmcalib.checks.corpus import ASSUMPTION_RULES, CORPUS_RULES
from mmcalib.checks.facts import CheckFacts, CheckStage, Rule
from mmcalib.checks.file import EFFECT_RULES
from mmcalib.checks.items import ENCODER_INPUT_RULES, ITEM_RULES, PROMPT_RULES
from mmcalib.checks.limits import LIMIT_RULES
from mmcalib.checks.options import (
    ENCODER_GRAPH_TRAPS,
    FRONTEND_TRAPS,
    LOGPROB_TRAPS,
    PRUNING_TRAPS,
    TOWER_PARALLEL_TRAPS,
    TRUST_TRAPS,
)
from mmcalib.checks.reserve import (
    ENGINE_RULES,
    PROCESSOR_CACHE_RULES,
    RESERVE_RULES,
    SIZE_HINT_RULES,
)

# In the order of their subjects; where two rules have one place, it decides.
RULES: tuple[Rule, ...] = (
    *ASSUMPTION_RULES,
    *CORPUS_RULES,
    *EFFECT_RULES,
    *ENCODER_INPUT_RULES,
    *ENGINE_RULES,
    *ITEM_RULES,
    *LIMIT_RULES,
    *PROCESSOR_CACHE_RULES,
    *PROMPT_RULES,
    *RESERVE_RULES,
    *SIZE_HINT_RULES,
)
TRAPS: tuple[TrapRule, ...] = (
    *ENCODER_GRAPH_TRAPS,
    *FRONTEND_TRAPS,
    *LOGPROB_TRAPS,
    *PRUNING_TRAPS,
    *TOWER_PARALLEL_TRAPS,
    *TRUST_TRAPS,
)


def judge(stage: CheckStage, facts: CheckFacts) -> Iterator[Check]:
    """What the rules of one stage find, in the order in which it would hurt."""
    for rule in rules(stage):
        if rule.needs <= facts.known:
            yield from rule.judge(facts)


@cache
def rules(stage: CheckStage) -> tuple[Rule, ...]:
    found = [rule for rule in every_rule() if stage in rule.places]
    return tuple(sorted(found, key=lambda rule: rule.places[stage]))


@cache
def every_rule() -> tuple[Rule, ...]:
    return RULES


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
    return tuple(sorted(TRAPS, key=lambda rule: rule.place))
