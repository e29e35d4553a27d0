"""The library call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mmcalib.derive.policy import Policy
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.calibration.run import run
from mmcalib.job.gate.calibration import Calibration
from mmcalib.job.memory.rehearse import gpu_of
from mmcalib.job.spec import STARTUP_BUDGET_S, Device, Job, Outcome, Validate
from mmcalib.progress import Progress, Silent


def calibrate(
    model: str,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    requests: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    policy: Policy | None = None,
    validate: Validate = "replay",
    allowed_local_media_path: str | os.PathLike[str] | None = None,
    startup_budget_s: float = STARTUP_BUDGET_S,
    seed: int = 0,
    gpu: str | Gpu | None = None,
    encoder_sweep: bool = False,
    device: Device = "auto",
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate vLLM for the media in `data` and `requests` and return the result.

    `model` is a local checkpoint folder or a hub id; `gpu` the one that will serve, by name, whose
    memory is then predicted ("auto": the present one). Whether the configuration may be used is
    `.verdict`. Raises `mmcalib.errors.MmcalibError` when there is nothing to calibrate.
    """
    job = Job(
        model=model,
        data=tuple(
            one if isinstance(one, str) else Path(one)
            for one in ([data] if isinstance(data, str | os.PathLike) else data)
        ),
        requests=_paths(requests),
        allowed_root=Path(allowed_local_media_path) if allowed_local_media_path else None,
        policy=policy or Policy(),
        validate=validate,
        startup_budget_s=startup_budget_s,
        seed=seed,
        gpu=gpu_of(gpu) if isinstance(gpu, str) else gpu,
        encoder_sweep=encoder_sweep,
        device=device,
    )
    return run(job, Outcome(), progress or Silent())


def _paths(
    given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[Path, ...]:
    several = [given] if isinstance(given, str | os.PathLike) else given
    return tuple(Path(one) for one in several)
