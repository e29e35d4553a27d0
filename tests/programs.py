"""Programs of tests that import vLLM: run as the engine's child is, and answering in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mmcalib.engine.environment import child_environment


def answer_of(*words: str | Path, **environment: str) -> Any:
    """Run Python with these words, and return what its last line says."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**child_environment(os.environ, offline=True), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
