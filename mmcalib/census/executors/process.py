"""A worker process as its parent sees it."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from mmcalib.census.executors.executor import Look
from mmcalib.census.executors.worker import BEGUN, Packed
from mmcalib.processes import spawn
from mmcalib.processes.pipe import patient_pipe

# Fields of /proc/PID/stat (proc(5)) behind the name, which may hold anything.
_UTIME, _STIME = 11, 12


class Process:
    """Started, and told what looks at an item. It dies with the thread that started it."""

    def __init__(self, look: Look, memory_bytes: int, send_s: float) -> None:
        self.pipe, theirs = patient_pipe(send_s)
        shared = os.memfd_create("mmcalib-begun")
        os.truncate(shared, BEGUN.size)
        self._begun = mmap.mmap(shared, BEGUN.size)
        fds = [theirs.fileno(), shared]
        numbers = [*fds, memory_bytes]
        self._process = spawn.spawn("mmcalib.census.executors.worker", numbers, fds)
        theirs.close()
        os.close(shared)
        with contextlib.suppress(OSError):
            self.pipe.send(look)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, orders: list[Packed]) -> None:
        """Kills it where it takes nothing for too long; the pipe says that it is dead."""
        try:
            self.pipe.send(orders)
        except OSError:
            self._process.kill()

    def begun(self) -> int:
        """How many items it has begun since it started."""
        number: int = BEGUN.unpack_from(self._begun)[0]
        return number

    def cpu_s(self) -> float:
        """The processor seconds that it has taken, 0 where that cannot be told."""
        try:
            words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[_UTIME]) + int(words[_STIME])) / os.sysconf("SC_CLK_TCK")

    def how_it_ended(self) -> str:
        """In words, once the pipe is closed."""
        return spawn.how_it_ended(self._process)

    def close(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.wait()
