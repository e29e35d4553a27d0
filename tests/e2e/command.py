"""The command as a user runs it: a process of its own."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any

from mmcalib.admission.calibration import Calibration
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Validation
from tests.programs import start_python

QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "MMCALIB_CACHE_DIR": str(cache), "NO_COLOR": "1", "COLUMNS": "80"}


def start(cache: Path, *words: str | Path) -> Popen[str]:
    return start_python("-m", "mmcalib", *words, env=environment(cache))


def mmcalib(cache: Path, *words: str | Path, code: int | None = 0) -> CompletedProcess[str]:
    """Run the command, which must end with this code; None: with any."""
    process = start(cache, *words)
    out, err = process.communicate(timeout=1500)
    assert code in (None, process.returncode), err
    return CompletedProcess(process.args, process.returncode, out, err)


@dataclass(frozen=True)
class Ran:
    """What a run has left in the folder `out`, and printed."""

    out: Path
    stdout: str
    stderr: str

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.load(self.out / "calibration.json")

    @cached_property
    def document(self) -> Any:
        return json.loads((self.out / "calibration.json").read_text("utf-8"))

    @cached_property
    def skipped(self) -> dict[str, str]:
        """Reasons by the names of files and the origins of requests."""
        entries = map(json.loads, (self.out / "skipped.jsonl").read_text().splitlines())
        return {os.path.basename(entry["path"]): entry["reason"] for entry in entries}


def run(cache: Path, out: Path, *words: str | Path) -> Ran:
    """Run, which must pass."""
    done = mmcalib(cache, "run", "--out", out, *words)
    return Ran(out, done.stdout, done.stderr)


def calibrated(cache: Path, out: Path, *words: str | Path) -> Calibration:
    return run(cache, out, *words).calibration


def checks_of(found: Calibration | Validation) -> dict[str, CheckResult]:
    return {check.name: check for check in found.checks}
