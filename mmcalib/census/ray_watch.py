"""Watchdog of a Ray worker process: kills its parent, the worker, if that is stopped.

Ray waits forever for a stopped process, but repeats a dead worker's chunk elsewhere.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

from mmcalib.processes import serve_parent

# A process that is traced or suspended for a moment survives.
_POLL_S = 2.0
_MOST_STOPPED = 5


def watch(_: Connection, pid: int) -> None:
    """Watch process `pid`, this one's parent, until it ends."""
    stopped = 0
    while os.getppid() == pid:
        stopped = stopped + 1 if _is_stopped(pid) else 0
        if stopped == _MOST_STOPPED:
            os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


if __name__ == "__main__":
    serve_parent(watch)
