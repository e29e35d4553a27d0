"""Memory that another process may take, and how an error tells that there was too little."""

from __future__ import annotations

import errno
import re
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")

_EXHAUSTED = {
    errno.ENOMEM: "memory",
    errno.ENOSPC: "disk space",
    errno.EDQUOT: "disk space",
}


def free_bytes(*, cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int | None:
    """What is free now; a container's own limit counts where it is the lower. None where the
    system does not say.
    """
    rooms = (_available(meminfo), _allowed(cgroup))
    return min((room for room in rooms if room is not None), default=None)


def exhausted(error: BaseException | None) -> str:
    """What this machine ran out of, by the chain of errors: memory, disk space, or nothing."""
    while error is not None:
        if isinstance(error, MemoryError):
            return "memory"
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            return _EXHAUSTED[error.errno]
        error = error.__cause__
    return ""


def _available(meminfo: Path) -> int | None:
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.M)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _allowed(cgroup: Path) -> int | None:
    """What the control group (version 2) has left; its own page cache is given back on demand."""
    try:
        most = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = (cgroup / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    cached = re.search(r"^inactive_file (\d+)$", stat, re.M)
    return max(0, most - used + (int(cached[1]) if cached else 0))
