"""Start, confine and end processes of our own.

What Python may import in processes that are started here: nothing from the working folder, which
may be a data set that somebody else made.
"""

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
    """A class with `close`, which is safe to call twice, and nothing else to do at the end."""

    __slots__ = ()

    def close(self) -> None:
        """End whatever was started."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# `M_MMAP_THRESHOLD` of glibc's malloc.h, and the bytes from which a block is a mapping of its own.
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = MIB


def give_back_large_blocks() -> None:
    """A block of a megabyte goes back to the system when nobody needs it any more.

    glibc counts blocks as small up to the largest that was ever let go of, 32 MiB at most, and
    keeps those between others: a process that goes through columns of a million numbers stays half
    as large again. Another C library does as it likes.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


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


# Python's own switch (3.11): neither `-m` nor `-c` looks in the working folder first. As a variable
# it reaches what those processes start in turn.
SAFE = {"PYTHONSAFEPATH": "1"}

_PATH = "PYTHONPATH"


def safe_environment(base: Mapping[str, str], path: Sequence[str] | None = None) -> dict[str, str]:
    """The variables of `base`, with `path` as PYTHONPATH (default: the one of `base`).

    An empty entry, such as a shell leaves in `PYTHONPATH=$PYTHONPATH:/opt/lib`, means the working
    folder and is left out, and so is `.`; other relative ones are made absolute.
    """
    given = base.get(_PATH, "").split(os.pathsep) if path is None else path
    kept = [os.path.abspath(entry) for entry in given if os.path.normpath(entry) != os.curdir]
    others = {name: value for name, value in base.items() if name != _PATH}
    return others | SAFE | ({_PATH: os.pathsep.join(kept)} if kept else {})


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


@contextmanager
def own_priority() -> Iterator[None]:
    """While open the scheduler's policy of this thread may change; then it is as it was.

    SVT-AV1 gives root's thread a real-time priority for good: it, and whatever it starts later,
    would let nothing else run.
    """
    if not hasattr(os, "sched_getscheduler"):
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


# `datasets` imports these where they are installed, for tensors that nobody asks for.
_LIGHT = {"USE_TORCH": "0", "USE_TF": "0", "USE_JAX": "0"}

STDERR = 2
# For a process that should have ended, and for one that is told to end.
_ENDING_S = 5.0
_PATIENCE_S = 2.0


class Worker(Closing):
    """A process of our own, `python -m MODULE PIPE FILES NUMBERS`, that calls `serve_parent`.

    It dies with the thread that started it, and keeps the open `files`. It has a session of its
    own, which an interrupt does not reach, and closing kills all that is in it, after SIGTERM if
    `gentle`. Sending through `pipe` raises OSError where the worker takes nothing for `send_s`; it
    is of no use then. Its output goes to the descriptor `output`; None: it is seen with
    MMCALIB_DEBUG only.
    """

    def __init__(
        self,
        module: str,
        *numbers: int,
        send_s: float,
        files: Sequence[int] = (),
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
        fds = [theirs.fileno(), *files]
        self._process = subprocess.Popen(
            [python or sys.executable, "-P", "-m", module, *map(str, (*fds, *numbers))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # This process' own way to its modules, wherever they lie.
            env=safe_environment(os.environ, sys.path) | _LIGHT if env is None else env,
            pass_fds=fds,
            start_new_session=True,
        )
        theirs.close()
        self._signals = (signal.SIGTERM, signal.SIGKILL) if gentle else (signal.SIGKILL,)
        self.closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Kills it where it takes nothing for too long; `receive` says that it ended."""
        try:
            self.pipe.send(message)
        except OSError:
            self.kill()

    def receive(self, silence_s: float) -> Any:
        """Its next message. Raises TimeoutError after so long a silence, EOFError when it ended."""
        if not self.pipe.poll(silence_s):
            raise TimeoutError
        try:
            return self.pipe.recv()
        except OSError as error:
            raise EOFError from error

    def exit_code(self, patience_s: float = 0.0) -> int | None:
        """Once it ended, which is waited for so long; else None."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience_s)
        return None

    def how_it_ended(self) -> str:
        """In words, once it should have ended."""
        code = self.exit_code(_ENDING_S)
        if code is None:
            return "does not answer"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self, sign: signal.Signals = signal.SIGKILL) -> None:
        """End it and all that it started at once, also from another thread."""
        if not self.closed:  # Its number may be that of another process by then.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, sign)

    def close(self) -> None:
        self.pipe.close()
        if not self.closed:
            for sign in self._signals:
                self.kill(sign)
                self.exit_code(_PATIENCE_S)
        self.closed = True


def serve_parent(serve: Callable[..., None]) -> None:
    """Be a `Worker`: `serve(pipe, FILES and NUMBERS)` until the parent closes its end."""
    belong_to_parent()
    pipe_fd, *numbers = map(int, sys.argv[1:])
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(Connection(pipe_fd), *numbers)
