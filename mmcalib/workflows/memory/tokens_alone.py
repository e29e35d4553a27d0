"""R4 where no bytes are known: the check says so, and what would settle it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from mmcalib.checks.check import Check
from mmcalib.checks.facts import Configuration
from mmcalib.checks.reserve import RESERVED
from mmcalib.wording import first_sentence
from mmcalib.workflows.memory.predicted import Predicted

_UNKNOWN: Final = (
    "bytes are not known of padded or tiled items, cached outputs that keep their batch, their "
    "merge, and the language model beside a full cache"
)


@dataclass(frozen=True, slots=True)
class Unrehearsed:
    """Why nothing was rehearsed, and what would tell the bytes."""

    why: str
    settles: str


def no_gpu(command: str) -> Unrehearsed:
    """Of a job that was given no GPU; `command` is the same job with `--gpu NAME`."""
    return Unrehearsed("no GPU was named", f"{command} rehearses it; no GPU is needed for that")


def not_rehearsed(predicted: Predicted, command: str) -> Unrehearsed:
    """Of rehearsals that ended early; `command` is the `mmcalib rehearse` that shows one."""
    gpu = predicted.gpu.name
    # `memory on ...` has the whole, and the command shows more.
    reason = first_sentence(predicted.failure.reason) if predicted.failure else ""
    reason = reason or "the profile holds nothing of the encoder"
    return Unrehearsed(
        f"rehearsals on {gpu} ended early, the first with: {reason}",
        f"{command} {predicted.gpu.flags} --verbose shows why; --validate replay on such a "
        "GPU sends it the heaviest prompts",
    )


def in_tokens(
    checks: Iterable[Check], decision: Configuration, unrehearsed: Unrehearsed
) -> list[Check]:
    """The checks with what R4 does not say in tokens: a pass becomes a warning, which decides no
    verdict and does not read like one in bytes. Where nothing can be held, nothing is unknown.
    """
    if not decision.budget.encoder_budget_tokens:
        return list(checks)
    return [_unknown(c, unrehearsed) if c.id == RESERVED else c for c in checks]


def _unknown(check: Check, unrehearsed: Unrehearsed) -> Check:
    detail = f"{check.detail}; only tokens were compared, because {unrehearsed.why}; {_UNKNOWN}"
    status = "warn" if check.status == "pass" else check.status
    return replace(check, status=status, detail=detail, remedy=check.remedy or unrehearsed.settles)
