"""Start, confine and end our own processes, which import nothing from the working folder."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Self

from mmcalib.text import MIB


class Closing:
    """Base class for objects with an idempotent `close()`."""

    __slots__ = ()

    def close(self) -> None:
        """End what the object has started."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# `M_MMAP_THRESHOLD` of glibc's malloc.h, and the size from which a block gets its own mapping.
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = MIB


def give_back_large_blocks() -> None:
    """Let glibc return freed blocks of a megabyte or more; no-op elsewhere.

    By default it keeps those below 32 MiB: a process with large columns stays 50% larger.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def confine(memory_bytes: int) -> None:
    """Limit a decoding process to `memory_bytes` more address space, and silence its warnings."""
    warnings.simplefilter("ignore")
    with open("/proc/self/statm", "rb") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + memory_bytes
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


# Python's switch (3.11) against imports from the working folder; child processes inherit it.
SAFE = {"PYTHONSAFEPATH": "1"}

_PATH = "PYTHONPATH"


def safe_environment(base: Mapping[str, str], path: Sequence[str] | None = None) -> dict[str, str]:
    """Return the variables of `base`, with `path` as PYTHONPATH (default: the one of `base`).

    Entries that mean the working folder are removed: `.`, and empty ones, as in
    `PYTHONPATH=$PYTHONPATH:/opt/lib`. Other relative entries become absolute.
    """
    entries = base.get(_PATH, "").split(os.pathsep) if path is None else path
    safe = [os.path.abspath(entry) for entry in entries if os.path.normpath(entry) != os.curdir]
    others = {name: value for name, value in base.items() if name != _PATH}
    return others | SAFE | ({_PATH: os.pathsep.join(safe)} if safe else {})


MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")

_EXHAUSTED = {errno.ENOMEM: "memory", errno.ENOSPC: "disk space", errno.EDQUOT: "disk space"}


def free_bytes(*, cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int | None:
    """Return the free host memory within the container's limit, or None if unknown."""
    amounts = (_available(meminfo), _allowed(cgroup))
    return min((amount for amount in amounts if amount is not None), default=None)


def exhausted(error: BaseException | None) -> str:
    """Return "memory" or "disk space" if the chain of errors shows that it ran out, else empty."""
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
    """Return the control group's (version 2) free memory, with its reclaimable page cache."""
    try:
        most = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = (cgroup / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    cached = re.search(r"^inactive_file (\d+)$", stat, re.M)
    return max(0, most - used + (int(cached[1]) if cached else 0))


@contextmanager
def own_priority() -> Iterator[None]:
    """Restore this thread's scheduling policy: SVT-AV1 leaves root's with a real-time priority."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


# `datasets` would import these, if installed, for tensors that mmcalib does not use.
_LIGHT = {"USE_TORCH": "0", "USE_TF": "0", "USE_JAX": "0"}

STDERR = 2
# Seconds to wait for a process that should have ended, and after a signal.
_ENDING_S = 5.0
_PATIENCE_S = 2.0


class WorkerFailed(Exception):  # noqa: N818 - a value in flight, turned into a message
    """A worker gave no answer; the words say what it did. `is_silent`: it may still run."""

    def __init__(self, words: str, *, is_silent: bool = False) -> None:
        super().__init__(words)
        self.is_silent = is_silent


class Worker(Closing):
    """A process, `python -m MODULE PIPE NUMBERS`, that calls `serve_parent`.

    It dies with the thread that started it. It has its own session, so interrupts do not reach it;
    closing kills the whole session, after SIGTERM if `gentle`.
    Sending through `pipe` raises OSError if the worker reads nothing for `send_s`; it is unusable
    then. Its output goes to the descriptor `output`; with None only MMCALIB_DEBUG shows it.
    """

    def __init__(
        self,
        module: str,
        *numbers: int,
        send_s: float,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        output: int | None = None,
        gentle: bool = False,
    ) -> None:
        self.pipe, theirs = Pipe()
        with socket.socket(fileno=os.dup(self.pipe.fileno())) as end:
            whole_s = int(send_s)
            patience = struct.pack("@ll", whole_s, round((send_s - whole_s) * 1e6))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        if output is None:
            output = STDERR if os.environ.get("MMCALIB_DEBUG") else subprocess.DEVNULL
        self._process = subprocess.Popen(
            [python or sys.executable, "-P", "-m", module, *map(str, (theirs.fileno(), *numbers))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # The worker finds modules in the same folders as this process.
            env=safe_environment(os.environ, sys.path) | _LIGHT if env is None else env,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._signals = (signal.SIGTERM, signal.SIGKILL) if gentle else (signal.SIGKILL,)
        self.closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Send a message. Kills a worker that reads nothing for too long."""
        try:
            self.pipe.send(message)
        except OSError:
            self.kill()

    def receive(self, silence_s: float) -> Any:
        """Return its next message. Raises WorkerFailed after `silence_s`, or if it ended."""
        if not self.pipe.poll(silence_s):
            raise WorkerFailed(f"took more than {silence_s:g} s", is_silent=True)
        try:
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerFailed(self.how_it_ended()) from error

    def exit_code(self, patience_s: float = 0.0) -> int | None:
        """Wait for its end and return the code, or None if it still runs after `patience_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience_s)
        return None

    def how_it_ended(self) -> str:
        """Describe the end of a process that should have ended."""
        code = self.exit_code(_ENDING_S)
        if code is None:
            return "does not answer"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self, sign: signal.Signals = signal.SIGKILL) -> None:
        """End it and its child processes at once; safe to call from another thread."""
        if not self.closed:  # Another process may have its id after that.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, sign)

    def close(self) -> None:
        self.pipe.close()
        if not self.closed:
            for sign in self._signals:
                self.kill(sign)
                self.exit_code(_PATIENCE_S)
        self.closed = True


_PR_SET_PDEATHSIG = 1


def serve_parent(serve: Callable[..., None]) -> None:
    """Run as a `Worker`: call `serve(pipe, *NUMBERS)` until the parent closes the pipe.

    Interrupts are ignored; on Linux the kernel kills this process when its parent thread ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    pipe_fd, *numbers = map(int, sys.argv[1:])
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(Connection(pipe_fd), *numbers)
