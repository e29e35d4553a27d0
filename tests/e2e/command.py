"""The command as a user runs it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def mmcalib(cache: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    process = start(cache, *words)
    out, err = process.communicate(timeout=1500)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
