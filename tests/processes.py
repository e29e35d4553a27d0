"""Processes that a test has started, told by a variable of their environment."""

import time
from collections.abc import Callable
from pathlib import Path


def started_with(variable: str) -> list[int]:
    """Those whose environment has `NAME=VALUE`, or begins a variable with it, and are not dead."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"\0{variable}".encode() in b"\0" + variables:
            found.append(int(entry.name))
    return found


def wait_until(true: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether it runs or is stopped; one that nobody has waited for yet does neither."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
