"""What a validation is asked to judge, and what it works with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmcalib.engine.host import EngineHost
from mmcalib.gpus.gpu import Gpu
from mmcalib.options.validate import STARTUP_BUDGET_S, Depth
from mmcalib.progress import Progress


@dataclass(frozen=True, slots=True)
class Media:
    """What the user gave to be served; nothing of it is needed."""

    data: Sequence[Path] = ()
    requests: Sequence[Path] = ()
    allowed_root: Path | None = None

    @property
    def given(self) -> bool:
        return bool(self.data or self.requests)


@dataclass(frozen=True, slots=True)
class ValidateJob:
    """A configuration in a file, in flags of `vllm serve`, or in both; and how far to judge it."""

    config: Path | None
    flags: tuple[str, ...] = ()
    model: str | None = None
    media: Media = field(default_factory=Media)
    gpu: Gpu | None = None
    depth: Depth = "replay"
    startup_budget_s: float = STARTUP_BUDGET_S


@dataclass(frozen=True, slots=True)
class ValidateSession:
    """What every stage of a validation works with."""

    job: ValidateJob
    host: EngineHost
    scratch: Path
    progress: Progress
