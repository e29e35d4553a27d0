"""Right-sizes vLLM for the media a team really serves.

    calibration = mmcalib.calibrate(model="Qwen/Qwen2.5-VL-3B-Instruct", data="./media")
    llm = vllm.LLM(**calibration.engine_args())

Importing this package loads neither torch nor vLLM; `calibrate` runs them in a child process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmcalib.version import __version__

if TYPE_CHECKING:
    from mmcalib.derive.policy import Policy
    from mmcalib.job.calibrate import calibrate
    from mmcalib.report.calibration import Calibration

__all__ = ["Calibration", "Policy", "__version__", "calibrate"]

_HOMES = {
    "Calibration": "mmcalib.report.calibration",
    "Policy": "mmcalib.derive.policy",
    "calibrate": "mmcalib.job.calibrate",
}


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that `import mmcalib` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mmcalib' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
