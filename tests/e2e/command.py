"""The command as a user runs it: a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from mmcalib.admission.calibration import Calibration
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Validation

QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "MMCALIB_CACHE_DIR": str(cache), "NO_COLOR": "1", "COLUMNS": "80"}


def start(cache: Path, *words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mmcalib", *map(str, words)],
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
