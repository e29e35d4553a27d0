"""What a process that was started here does first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import warnings

_PR_SET_PDEATHSIG = 1


def belong_to_parent() -> None:
    """Leave interrupts to the parent; on Linux the kernel kills this process when the thread that
    started it ends, however it ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(memory_bytes: int) -> None:
    """For a process that decodes: it gets so much address space more than it has now, and nobody
    sees what libraries warn of.
    """
    warnings.simplefilter("ignore")
    with open("/proc/self/statm", "rb") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + memory_bytes
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
