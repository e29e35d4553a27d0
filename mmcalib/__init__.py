"""Sizes vLLM for the images, videos and audio that you really serve.

    calibration = mmcalib.calibrate(model="Qwen/Qwen2.5-VL-3B-Instruct", data="./media")
    llm = vllm.LLM(**calibration.engine_args())

    (rehearsal,) = mmcalib.rehearse("Qwen/Qwen2.5-VL-3B-Instruct", gpu="H100-80G")
    rehearsal.memory.kv_cache_tokens

Importing this package loads neither torch nor vLLM; they run in a child process.
"""

# Import nothing here: under `python -m mmcalib` this runs while the working folder, possibly an
# untrusted data set, still comes before Python's own modules.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mmcalib.admission.calibration import Calibration as Calibration
    from mmcalib.admission.datasets import filter as filter  # noqa: A004 - mmcalib.filter
    from mmcalib.domain.shapes import AudioShape as AudioShape
    from mmcalib.domain.shapes import ImageShape as ImageShape
    from mmcalib.domain.shapes import VideoShape as VideoShape
    from mmcalib.gate.admission import Admission as Admission
    from mmcalib.limits.policy import Policy as Policy
    from mmcalib.progress import Progress as Progress
    from mmcalib.results.memory import Rehearsal as Rehearsal
    from mmcalib.results.plan import Validation as Validation
    from mmcalib.version import __version__ as __version__
    from mmcalib.workflows.run.run import calibrate as calibrate
    from mmcalib.workflows.traffic.rehearse import rehearse as rehearse
    from mmcalib.workflows.validate.validate import validate as validate

_HOMES = {
    "Admission": "mmcalib.gate.admission",
    "AudioShape": "mmcalib.domain.shapes",
    "Calibration": "mmcalib.admission.calibration",
    "ImageShape": "mmcalib.domain.shapes",
    "Policy": "mmcalib.limits.policy",
    "Progress": "mmcalib.progress",
    "Rehearsal": "mmcalib.results.memory",
    "calibrate": "mmcalib.workflows.run.run",
    "filter": "mmcalib.admission.datasets",
    "rehearse": "mmcalib.workflows.traffic.rehearse",
    "Validation": "mmcalib.results.plan",
    "VideoShape": "mmcalib.domain.shapes",
    "validate": "mmcalib.workflows.validate.validate",
    "__version__": "mmcalib.version",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> "Any":
    """Load the public names on first use, so that `import mmcalib` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mmcalib' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> "list[str]":
    return sorted(__all__)
