"""Starting a module of mmcalib as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from mmcalib.processes.environment import safe_environment

# `datasets` imports these where they are installed, for tensors that nobody asks for.
_LIGHT = {"USE_TORCH": "0", "USE_TF": "0", "USE_JAX": "0"}


def spawn(
    module: str, numbers: Sequence[int], open_files: Sequence[int]
) -> subprocess.Popen[bytes]:
    """`python -m MODULE NUMBERS`, in a session of its own, so that an interrupt is not its own; it
    keeps the open files. What it prints is seen with MMCALIB_DEBUG only.
    """
    debug = bool(os.environ.get("MMCALIB_DEBUG"))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if debug else subprocess.DEVNULL,
        # This process' own way to its modules, wherever they lie.
        env=safe_environment(os.environ, sys.path) | _LIGHT,
        pass_fds=list(open_files),
        start_new_session=True,
    )


def how_it_ended(process: subprocess.Popen[bytes], patience_s: float = 5.0) -> str:
    """In words, once it should have ended."""
    try:
        code = process.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        return "does not answer"
    return in_words(code)


def in_words(code: int) -> str:
    """How a process ended, by its return code."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
