"""Ends a Ray worker process that was stopped, which started this one itself.

Ray waits for a stopped process without end. Of one that ended, it has the chunk done elsewhere.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

from mmcalib.processes import serve_parent

# A process that is being traced or suspended for a moment goes on.
_POLL_S = 2.0
_MOST_STOPPED = 5


def watch(_: Connection, pid: int) -> None:
    """Until the process, this one's parent, is gone."""
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
