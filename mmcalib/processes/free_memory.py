"""Memory that another process may take."""

from __future__ import annotations

import re
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_bytes(*, cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int | None:
    """What is free now; a container's own limit counts where it is the lower. None where the
    system does not say.
    """
    rooms = (_available(meminfo), _allowed(cgroup))
    return min((room for room in rooms if room is not None), default=None)


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
