"""From words on the command line to how a corpus is looked at."""

from __future__ import annotations

import math

from mmcalib.errors import UsageError
from mmcalib.job.probing import EXECUTORS, ProbeOptions, Where


def probe_options_of(
    *,
    executor: str,
    workers: int | None,
    item_timeout: float,
    ray_address: str | None,
    no_cache: bool,
) -> ProbeOptions:
    """Check what the parser cannot. Raises UsageError."""
    where: Where | None = next((known for known in EXECUTORS if known == executor), None)
    if where is None:
        raise UsageError(
            f"--executor {executor}: no such choice", hint=f"one of {', '.join(EXECUTORS)}"
        )
    if workers is not None and workers < 1:
        raise UsageError(f"--workers must be at least 1, not {workers}", hint="--workers 4")
    if not 0 < item_timeout < math.inf:
        raise UsageError(
            "--item-timeout must be a number of seconds above 0", hint="--item-timeout 30"
        )
    if ray_address is not None and where != "ray":
        raise UsageError("--ray-address is of a Ray cluster", hint="--executor ray")
    return ProbeOptions(where, workers, item_timeout, ray_address, remembered=not no_cache)
