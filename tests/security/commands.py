"""The command as a process of its own, beside a scan's usual things."""

import os
import subprocess
import sys
from pathlib import Path

MOST_S = 60


def environment(home: Path, **more: object) -> dict[str, str]:
    """Nothing of the user's own: cache, settings and temporary files are below `home`."""
    given = {"HOME": home, "MMCALIB_CACHE_DIR": home / "cache", "TMPDIR": home, "NO_COLOR": 1}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return kept | {name: str(value) for name, value in (given | more).items()}


def started(home: Path, *words: object, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mmcalib", *map(str, words)],
        cwd=home,
        env=environment(home, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(home: Path, *words: object, **more: object) -> subprocess.CompletedProcess[str]:
    process = started(home, *words, **more)
    out, err = process.communicate(timeout=MOST_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
