"""The library call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmcalib.derive.policy import Policy
from mmcalib.gpus.gpu import Gpu
from mmcalib.options.option import checked
from mmcalib.options.policy import policy_from, said_by
from mmcalib.options.run import SAMPLE_PER_MODALITY, Device, RunOptions, Validate
from mmcalib.options.validate import STARTUP_BUDGET_S
from mmcalib.progress import Progress, StepLog
from mmcalib.workflows.calibration.run import run
from mmcalib.workflows.gate.calibration import Calibration
from mmcalib.workflows.memory.rehearse import gpu_of
from mmcalib.workflows.spec import Job, RunSoFar


def calibrate(
    model: str | None = None,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    config: str | os.PathLike[str] | None = None,
    requests: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    policy: Policy | Mapping[str, Any] | None = None,
    validate: Validate = "replay",
    allowed_local_media_path: str | os.PathLike[str] | None = None,
    allowed_media_domains: Sequence[str] = (),
    sample: int = SAMPLE_PER_MODALITY,
    startup_budget_s: float = STARTUP_BUDGET_S,
    gpu: str | Gpu | None = None,
    device: Device = "cpu",
    pin_kv_cache: bool = False,
    engine_args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate vLLM for the media in `data` and `requests`, and return the result.

    `model` is a local checkpoint folder or a hub id; `config` is a file of what serves today, in
    any form, which may name the model: its limits are compared with. `policy` may be a dict of its
    fields; `gpu` is the one that will serve, by name, whose memory is then predicted ("auto": the
    present one). `engine_args` are what the server has besides, such as
    `{"tensor_parallel_size": 2}`. Whether the configuration may be used is `.verdict`. Raises
    `mmcalib.errors.MmcalibError` when there is nothing to calibrate.
    """
    policy = policy_from(policy)
    options = checked(
        RunOptions,
        {
            **said_by(policy),
            "model": model,
            "config": Path(config) if config else None,
            "data": [one if isinstance(one, str) else Path(one) for one in _several(data)],
            "requests": [Path(one) for one in _several(requests)],
            "allowed_local_media_path": Path(allowed_local_media_path)
            if allowed_local_media_path
            else None,
            "validate": validate,
            "allowed_media_domains": list(allowed_media_domains),
            "sample": sample,
            "startup_budget_s": startup_budget_s,
            "device": device,
            "pin_kv_cache": pin_kv_cache,
        },
    )
    where = gpu_of(gpu) if isinstance(gpu, str) else gpu
    job = Job.of(options, gpu=where, policy=policy, engine_args=engine_args)
    return run(job, RunSoFar(), progress or StepLog())


def _several(
    given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> Sequence[str | os.PathLike[str]]:
    return [given] if isinstance(given, str | os.PathLike) else given
