"""What vLLM says of a configuration, and its engine does with it."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.facts import CheckFacts, Need
from mmcalib.checks.rule import CheckStage, Rule

CONFIGURATION_ACCEPTED = CheckId("configuration accepted")
BATCH_HOLDS_ITEM = CheckId("batch holds an item")
DEFAULT_CONFIGURATION = CheckId("default configuration")
ENGINE_START = CheckId("engine start")
MEMORY_PROFILE = CheckId("memory profile")
REPLAY = CheckId("replay")
SWEEP = CheckId("encoder sweep")
PROCESSOR_ON_GPU = CheckId("processor on the GPU")
DEFAULT_COMPARED = CheckId("default for comparison")
RUN_FINISHED = CheckId("run finished")


def _default(facts: CheckFacts) -> Iterator[Check]:
    if error := facts.decision.default_error:
        detail = f"vLLM refuses to start with its defaults: {error}"
        yield Check(DEFAULT_CONFIGURATION, "warn", detail)


RULES = (
    Rule((DEFAULT_CONFIGURATION,), {CheckStage.DECIDED: 80}, _default, frozenset({Need.DECISION})),
)
