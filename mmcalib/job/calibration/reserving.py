"""R4 in bytes, which takes the place of what tokens and tensors alone could say."""

from __future__ import annotations

from collections.abc import Sequence

from mmcalib.census.accesses import Accesses
from mmcalib.checks.catalogue.reserve import RESERVED
from mmcalib.checks.check import Check
from mmcalib.derive.policy import Policy
from mmcalib.job.decision.decision import Decision
from mmcalib.job.memory.checks import known_in_bytes, predicted_shortfall, reserved_check
from mmcalib.job.memory.cured import Ask, cured
from mmcalib.job.memory.predicted import Predicted
from mmcalib.job.memory.retained import views_check
from mmcalib.job.memory.tokens_alone import in_tokens, not_rehearsed


def in_bytes(
    checks: Sequence[Check],
    predicted: Predicted,
    decision: Decision,
    policy: Policy,
    every: Ask,
    accesses: Accesses,
    rehearse: str,
) -> list[Check]:
    """The checks with R4 in bytes, where it was rehearsed, options with which it passes, as
    `every` rehearses them, and what cached items keep beyond that; where not, with what tokens
    leave unknown. `rehearse` is the command that rehearses the model.
    """
    found = predicted_shortfall(predicted, decision)
    if found is None:
        return in_tokens(checks, decision, not_rehearsed(predicted, rehearse))
    cures = []
    if not found.passes:
        cures = [
            " ".join(f"--{n.replace('_', '-')} {v}" for n, v in cure.engine.values.items())
            for cure in cured(found, decision, every)
        ]
    allowed = policy.allow_under_reserve
    reserved = reserved_check(predicted, decision, allow_under_reserve=allowed, cures=cures)
    gone = {RESERVED, *known_in_bytes(predicted.calibrated)}
    kept = views_check(predicted, decision, accesses)
    more = [check for check in (reserved, kept) if check is not None]
    return [*(c for c in checks if c.id not in gone), *more]
