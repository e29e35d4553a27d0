"""An option that makes vLLM take what its startup profile does not show, as a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmcalib.checks.check import Check
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality
from mmcalib.wording import gib


@dataclass(frozen=True, slots=True)
class Taken:
    """A row of the memory table: at most so many bytes, *computed*."""

    what: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Trap:
    """A finding, and the memory that it takes where that is known."""

    check: Check
    taken: Taken | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of a configuration: vLLM's budget with its dummies, items per prompt, the size
    of the vocabulary (0: unknown), and from a rehearsal, None without one, bytes above the model.

    `encoder_peak_bytes` are of the `encoder_tokens` that the profile encodes, `step_bytes` of the
    worst step of each modality; `runner` is vLLM's, `V1` or `V2`.
    """

    budget: Budget
    counts: Mapping[Modality, int]
    vocab_size: int = 0
    encoder_peak_bytes: int | None = None
    encoder_tokens: int = 0
    step_bytes: Mapping[Modality, int] = field(default_factory=dict)
    encoder_cache_bytes: int | None = None
    activation_peak_bytes: int | None = None
    runner: str = ""


@dataclass(frozen=True, slots=True)
class TrapRule:
    """`find` is given the engine arguments, and `of_server` all arguments of `vllm serve`, those of
    its front end among them; `place` is the one among the others.
    """

    place: int
    find: Callable[[Mapping[str, Any], Figures], Trap | None]
    of_server: bool = False


def size(nbytes: int | None) -> str:
    """Such as ` (2.10 GiB, computed)`; nothing where it is not known."""
    return "" if nbytes is None else f" ({gib(nbytes)}, computed)"
