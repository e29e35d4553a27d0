"""What is asked of a validation, and what it has found so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmcalib.checks.check import Check
from mmcalib.checks.trap import Taken
from mmcalib.geometry import ResolvedModel
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.proof.prove import Proof
from mmcalib.job.validate.items import Media
from mmcalib.job.validate.memory import ServedMemory
from mmcalib.job.validate.subject import Subject
from mmcalib.options.validate import STARTUP_BUDGET_S, Depth


@dataclass(frozen=True, slots=True)
class Asked:
    """A file for `vllm serve --config` with `flags` on top, and how far to judge it."""

    config: Path
    flags: tuple[str, ...] = ()
    model: str | None = None
    media: Media = field(default_factory=Media)
    gpu: Gpu | None = None
    depth: Depth = "replay"
    startup_budget_s: float = STARTUP_BUDGET_S


@dataclass(slots=True)
class Found:
    """What is known so far. `served` are all arguments of `vllm serve`, `taken` the memory that
    options take beside the profile.
    """

    checks: list[Check] = field(default_factory=list)
    engine_args: dict[str, Any] | None = None
    served: Mapping[str, Any] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)
    model: str = ""
    resolved: ResolvedModel | None = None
    subject: Subject | None = None
    memory: ServedMemory | None = None
    proof: Proof = field(default_factory=Proof)
    items: Literal["none", "corpus", "made up"] = "none"
    prompts: int = 0
    skipped: int = 0
