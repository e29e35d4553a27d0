"""What vLLM says of a configuration, and its engine does with it."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.checks.check import NOT_STARTED, Check, CheckId
from mmcalib.checks.facts import CheckFacts, Need
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.domain.model import ModelInfo

CONFIGURATION_ACCEPTED = CheckId("configuration accepted")
BATCH_HOLDS_ITEM = CheckId("batch holds an item")
DEFAULT_CONFIGURATION = CheckId("default configuration")
ENGINE_START = CheckId("engine start")
MEMORY_PROFILE = CheckId("memory profile")
REPLAY = CheckId("replay")
PROCESSOR_ON_GPU = CheckId("processor on the GPU")
RUN_FINISHED = CheckId("run finished")
VLLM_PARTS = CheckId("parts of vLLM")
# The flags that it is about need a GPU.
NOT_STARTED_WITH = CheckId(f"{NOT_STARTED} {{}}")


def moved_parts(opened: ModelInfo) -> Iterator[Check]:
    """A warning for what this release could not be asked for."""
    for part, why in opened.moved.items():
        detail = f"{part}: not known, and nothing is said of it: {why}"
        yield Check(VLLM_PARTS, "warn", detail, "mmcalib doctor")


def _moved(facts: CheckFacts) -> Iterator[Check]:
    return moved_parts(facts.model)


def _default(facts: CheckFacts) -> Iterator[Check]:
    if error := facts.decision.default_error:
        detail = f"vLLM refuses to start with its defaults: {error}"
        yield Check(DEFAULT_CONFIGURATION, "warn", detail)


RULES = (
    Rule((VLLM_PARTS,), {CheckStage.WRITTEN: 5}, _moved, frozenset({Need.MODEL})),
    Rule((DEFAULT_CONFIGURATION,), {CheckStage.DECIDED: 80}, _default, frozenset({Need.DECISION})),
)
