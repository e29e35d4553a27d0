"""One calibration made by hand, a golden itself: every other output is rendered from it."""

from mmcalib.admission.calibration import Calibration
from tests.report.golden import FOLDER

SERVE = "vllm serve --config out/engine.yaml"


def calibration() -> Calibration:
    """A corpus of pages and clips on Qwen2.5-VL, started on a CPU; all checks but one pass."""
    return Calibration.load(FOLDER / "calibration.json")
