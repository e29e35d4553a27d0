"""A worker process as its parent sees it."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
from multiprocessing import Pipe

from mmcalib.census.executors.executor import Look
from mmcalib.census.executors.worker import BEGUN

_END_S = 5.0


class Process:
    """Started, and told what looks at an item. It dies with the thread that started it."""

    def __init__(self, look: Look, memory_bytes: int) -> None:
        self.pipe, theirs = Pipe()
        shared = os.memfd_create("mmcalib-begun")
        os.truncate(shared, BEGUN.size)
        self._begun = mmap.mmap(shared, BEGUN.size)
        debug = bool(os.environ.get("MMCALIB_DEBUG"))
        numbers = [theirs.fileno(), shared, memory_bytes]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mmcalib.census.executors.worker", *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if debug else subprocess.DEVNULL,
            env=_environment(),
            pass_fds=[theirs.fileno(), shared],
            start_new_session=True,
        )
        theirs.close()
        os.close(shared)
        with contextlib.suppress(OSError):
            self.pipe.send(look)

    @property
    def pid(self) -> int:
        return self._process.pid

    def begun(self) -> int:
        """How many items it has begun since it started."""
        number: int = BEGUN.unpack_from(self._begun)[0]
        return number

    def how_it_ended(self) -> str:
        """In words, once the pipe is closed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        code = self._process.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def close(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.wait()


def _environment() -> dict[str, str]:
    """As here, and with this process' own way to its modules, wherever it was started."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}
