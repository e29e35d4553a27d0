"""Runs in the server's process: `mmcalib serve`, ended with whoever started it."""

from __future__ import annotations

import os
import signal
import sys
import threading


def _end_with_parent() -> None:
    """Standard input is a pipe that the parent holds: however it ends, it is closed then. What
    vLLM has started is in the same group.
    """
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from mmcalib.child.serve import main

    main()
