"""The command as a user runs it: a process of its own."""

import os
import subprocess
from pathlib import Path

from mmcalib.admission.calibration import Calibration
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Validation
from tests.programs import start_python

QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "MMCALIB_CACHE_DIR": str(cache), "NO_COLOR": "1", "COLUMNS": "80"}


def start(cache: Path, *words: str | Path) -> subprocess.Popen[str]:
    return start_python("-m", "mmcalib", *words, env=environment(cache))


def mmcalib(
    cache: Path, *words: str | Path, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run the command, which must end with this code; None: with any."""
    process = start(cache, *words)
    out, err = process.communicate(timeout=1500)
    assert code in (None, process.returncode), err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def calibrated(cache: Path, out: Path, *words: str | Path) -> Calibration:
    """Run, which must pass, and return what is in the folder `out`."""
    mmcalib(cache, "run", "--out", out, *words)
    return Calibration.load(out / "calibration.json")


def checks_of(found: Calibration | Validation) -> dict[str, CheckResult]:
    return {check.name: check for check in found.checks}
