"""A command of mmcalib in a process of its own, and what that took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Exit codes of a command that came to its end: the verdict is pass, or fail.
_ANSWERED = (0, 3)

# Runs `mmcalib`, then says what its own process took, and what it took with all its children.
_MEASURED = """
import json, resource, sys
from mmcalib.cli import main
try:
    main()
except SystemExit as ended:
    code = ended.code
own, all_ = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu = sum(use.ru_utime + use.ru_stime for use in (own, all_))
print("USAGE", json.dumps({"code": code, "peak_kib": own.ru_maxrss, "cpu_s": cpu}), file=sys.stderr)
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a command took: all measured, `parent_bytes` the peak of its own process alone. `said`
    is its stderr.
    """

    wall_s: float
    cpu_s: float
    parent_bytes: int
    said: str


def measured(words: Sequence[str], cache: Path) -> Usage:
    """`mmcalib` with these words, which remembers in `cache`. Ends the program where it fails."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
        "MMCALIB_CACHE_DIR": str(cache),
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.monotonic() - began
    said = [line for line in done.stderr.splitlines() if line.startswith("USAGE ")]
    usage = json.loads(said[-1].removeprefix("USAGE ")) if said else {"code": done.returncode}
    if usage["code"] not in _ANSWERED:
        raise SystemExit(f"mmcalib {words[0]} ended with {usage['code']}:\n{done.stderr[-3000:]}")
    return Usage(wall, usage["cpu_s"], usage["peak_kib"] * 1024, done.stderr)
