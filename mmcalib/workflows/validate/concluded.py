"""Last stage: the checks of all the others, with R4 in bytes where it is known."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from mmcalib.census.accesses import Accesses
from mmcalib.checks.check import Check
from mmcalib.checks.reserve import RESERVED, SIZE_HINT
from mmcalib.workflows.memory.checks import predicted_shortfall
from mmcalib.workflows.memory.tokens_alone import Unrehearsed, in_tokens, no_gpu
from mmcalib.workflows.validate.memory import ServedMemory, checks, unrehearsed
from mmcalib.workflows.validate.tried import TriedConfig


def concluded(
    before: Sequence[Check], tried: TriedConfig, memory: ServedMemory | None, config: str
) -> list[Check]:
    """All checks, of which those `before` come from the other stages."""
    subject, found = tried.subject, list(before)
    if memory is not None:
        accesses = tried.corpus.accesses if tried.corpus is not None else Accesses()
        more = list(checks(memory, subject, tried.proof.started, config, accesses))
        found = in_bytes(found, more)
    if memory is None or predicted_shortfall(memory.predicted, subject) is None:
        found = in_tokens(found, subject, _unrehearsed(config, memory))
    return found


def _unrehearsed(config: str, memory: ServedMemory | None) -> Unrehearsed:
    if memory is not None:
        return unrehearsed(memory, config)
    return no_gpu(shlex.join(["mmcalib", "validate", "--config", config, "--gpu", "NAME"]))


def in_bytes(before: list[Check], memory: list[Check]) -> list[Check]:
    """R4 in bytes decides; the cures of the one in tokens are its cures too."""
    tokens = next((check for check in before if check.id == RESERVED), None)
    if tokens is None or all(check.id != RESERVED for check in memory):
        return [*before, *memory]
    cures = tokens.remedy if tokens.status == "fail" else ""
    memory = [
        replace(c, remedy=cures or c.remedy) if c.id == RESERVED and c.status == "fail" else c
        for c in memory
    ]
    known = {check.id for check in before if check.status == "fail"}
    memory = [check for check in memory if check.id == RESERVED or check.id not in known]
    kept = [check for check in before if check.id != RESERVED]
    if any(c.id == RESERVED and c.status == "pass" for c in memory):
        kept = [
            replace(c, status="warn") if SIZE_HINT.covers(c.id) and c.status == "fail" else c
            for c in kept
        ]
    return [*kept, *memory]
