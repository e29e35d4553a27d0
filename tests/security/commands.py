"""The command as a process of its own, beside a scan's usual things."""

import os
import subprocess
from pathlib import Path

from tests.programs import start_python


def environment(home: Path, **more: object) -> dict[str, str]:
    """Nothing of the user's own: cache, settings and temporary files are below `home`."""
    given = {"HOME": home, "MMCALIB_CACHE_DIR": home / "cache", "TMPDIR": home, "NO_COLOR": 1}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return kept | {name: str(value) for name, value in (given | more).items()}


def started(home: Path, *words: object, **more: object) -> subprocess.Popen[str]:
    env = environment(home, **more)
    return start_python("-m", "mmcalib", *words, cwd=home, env=env, stdin=subprocess.DEVNULL)


def ended(home: Path, *words: object, **more: object) -> subprocess.CompletedProcess[str]:
    process = started(home, *words, **more)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
