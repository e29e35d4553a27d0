"""Start the child process that runs vLLM, send it requests, and follow its log."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmcalib.engine import messages as m
from mmcalib.engine.environment import child_environment
from mmcalib.errors import EngineDied, EngineError, EngineSilent
from mmcalib.files import Scratch, link_or_copy
from mmcalib.processes import Closing, Worker

_LOG_PREFIX = "mmcalib-engine-"
# An error message points to a log. The newest five of these logs stay for a day.
_MAX_LOGS = 5
_MAX_LOG_AGE_S = 24 * 60 * 60


class ChildLog(Closing):
    """The child's log: the file at `path`, or a temporary file."""

    def __init__(self, path: Path | None) -> None:
        self._scratch = Scratch() if path is None else None
        _remove_old_logs(Path(tempfile.gettempdir()))
        self.path = self._scratch.path / "engine.log" if self._scratch else Path(path or "")
        self.path.touch()
        self._lasting_path: Path | None = None if self._scratch else self.path

    def keep(self) -> Path | None:
        """Keep the log for an error to point to, and return its path; None if it is empty."""
        if self._lasting_path is None and self.path.stat().st_size:
            folder = Path(tempfile.mkdtemp(prefix=_LOG_PREFIX))
            _remove_old_logs(folder.parent)
            self._lasting_path = folder / self.path.name
            link_or_copy(self.path, self._lasting_path)
        return self._lasting_path

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
            self.path = self._lasting_path or self.path


def _remove_old_logs(folder: Path) -> None:
    """Remove this user's logs beyond the newest `_MAX_LOGS`, and those older than a day."""
    logs: list[tuple[float, Path]] = []
    for path in folder.glob(f"{_LOG_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process removes them too
            status = path.lstat()
            if status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode):
                logs.append((status.st_mtime, path))
    logs.sort(reverse=True)
    since = time.time() - _MAX_LOG_AGE_S
    for _, path in [*logs[_MAX_LOGS:], *(log for log in logs[:_MAX_LOGS] if log[0] < since)]:
        shutil.rmtree(path, ignore_errors=True)


class LogTail:
    """Call `on_line` once for every complete line written from now on."""

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self._path, self._on_line = path, on_line
        self._read_to = path.stat().st_size if path.exists() else 0

    def follow(self) -> None:
        """Report the lines written since the last call; of a progress bar only its last state."""
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_to += len(whole) + len(newline)
        for line in whole.decode("utf-8", "replace").split("\n"):
            states = [state for state in line.split("\r") if state.strip()]
            if states:
                self._on_line(states[-1].rstrip())


def last_line(log: Path) -> str:
    """Return the last non-blank line of the log, at most 300 characters."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        lines = file.read().decode("utf-8", "replace").splitlines()
    texts = [line.strip() for line in lines if line.strip()]
    return texts[-1][:300] if texts else ""


# An engine start compiles kernels and loads tens of gigabytes. A longer silence is a hang.
SILENCE_S = 900.0
# A processor call on the largest known video takes about a minute on two cores.
FILE_SILENCE_S = 300.0
_POLL_S = 0.2


class EngineHost(Closing):
    """One long-lived child process that runs vLLM and answers one request at a time.

    `on_note` receives progress texts, `on_log` every line of output. `python` is the interpreter
    whose vLLM runs; it does not need mmcalib.
    A crash, kill or silence of the child raises `EngineDied` with the last line of its log.
    Closing kills the whole process group, so no process that vLLM started outlives it.
    """

    def __init__(
        self,
        *,
        log: Path | None = None,
        python: str = sys.executable,
        silence_s: float = SILENCE_S,
        on_note: Callable[[str], None] = lambda text: None,
        on_log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.on_note = on_note
        self._named_log, self._on_log = log, on_log
        self._python, self._silence_s = python, silence_s
        self._environment = child_environment(os.environ, foreign=python != sys.executable)
        self._open_request: m.OpenModel | None = None
        self._refused: EngineError | None = None
        self._start()

    def _start(self) -> None:
        self._log = ChildLog(self._named_log)
        self._tail = LogTail(self._log.path, self._on_log)
        with self._log.path.open("ab") as sink:
            self._child = Worker(
                "mmcalib.child",
                send_s=self._silence_s,
                python=self._python,
                env=self._environment,
                output=sink.fileno(),
                gentle=True,
            )
        self._closing = False

    def revive(self) -> None:
        """Replace a dead child and open the last model again. Raises as `ask`."""
        self.close()
        self._start()
        if self._open_request is not None:
            self.ask(replace(self._open_request, search_knobs=False), "opening the model again")

    @property
    def is_closed(self) -> bool:
        return self._child.closed

    @property
    def pid(self) -> int:
        return self._child.pid

    def ask(self, request: m.Request[m.R], doing: str) -> m.R:
        """Send one request and wait for its closing reply.

        Raises `VllmRefused` with vLLM's error, `VllmMoved` if mmcalib does not fit this release,
        `VllmMissing` without vLLM, `EngineDied` if the child is gone.
        """
        if isinstance(request, m.OpenModel):
            self._open_request = request
        *_, answer = self._converse(request, doing)
        reply: m.R = answer
        return reply

    def measure(self, request: m.Measure, doing: str) -> Iterator[m.Measured]:
        """Yield one `Measured` per subject, in order. Files have a shorter time limit."""
        answers = self._converse(request, doing)
        yield from (answer for answer in answers if isinstance(answer, m.Measured))

    def _converse(self, request: m.Request[Any], doing: str) -> Iterator[Any]:
        subjects = request.subjects if isinstance(request, m.Measure) else ()
        has_files = any(isinstance(subject, m.File) for subject in subjects)
        silence_s = min(self._silence_s, FILE_SILENCE_S) if has_files else self._silence_s
        if self._child.pipe.closed:
            hint = f"its log: {self._log.path}" if self._log.path.exists() else ""
            raise EngineDied(f"the engine process ended before {doing}", hint=hint)
        try:
            self._child.pipe.send((request, doing))
        except BlockingIOError:
            raise self._silence_error(doing, self._silence_s) from None
        except OSError:
            raise self._death_error(doing) from None
        while True:
            answer = self._receive(doing, silence_s)
            if isinstance(answer, str):
                self.on_note(answer)
            elif isinstance(answer, m.Measured):
                yield answer
            else:
                break
        self._tail.follow()
        if isinstance(answer, EngineError):
            self._refused = answer
            raise answer
        yield answer

    def _receive(self, doing: str, silence_s: float) -> Any:
        deadline, pipe = time.monotonic() + silence_s, self._child.pipe
        try:
            while not pipe.poll(_POLL_S):
                self._tail.follow()
                if self._child.exit_code() is not None and not pipe.poll(0):
                    raise self._death_error(doing)
                if time.monotonic() > deadline:
                    raise self._silence_error(doing, silence_s)
            return pipe.recv()
        except (EOFError, OSError):
            raise self._death_error(doing) from None

    def _silence_error(self, doing: str, silence_s: float) -> EngineSilent:
        hint = self._log_hint("its log") or "the same command when this machine is less busy"
        self.close()
        return EngineSilent(
            f"the engine process did not respond for {silence_s:.0f} s while {doing}", hint=hint
        )

    def _death_error(self, doing: str) -> EngineDied:
        if self._closing:
            return EngineDied(f"mmcalib ended the engine process while {doing}")
        # It may also have closed the pipe and run on, so ask before it is killed.
        how, code = self._child.how_it_ended(), self._child.exit_code()
        self._tail.follow()
        last, hint = last_line(self._log.path), self._log_hint("its log")
        self.close()
        message = f"the engine process {how} while {doing}"
        if code == -signal.SIGKILL:
            # The kernel kills a process when memory runs out; the process cannot log it.
            why, message = "the system killed the engine", f"{message} (out of memory?)"
            return EngineDied(message, hint=hint, reason=why, exhausted="memory")
        exhausted = "memory" if "std::bad_alloc" in last else ""
        return EngineDied(f"{message}: {last}" if last else message, hint=hint, exhausted=exhausted)

    def _log_hint(self, what: str) -> str:
        """Keep the log and return a hint with its path; empty if the log is empty."""
        log = self._log.keep()
        return f"{what}: {log}" if log else ""

    def __exit__(self, *raised: object) -> None:
        """Add the log to a refusal that ends the job; other refusals are trials and keep none."""
        if self._refused is not None and self._refused in raised:
            hints = self._refused.hint, self._log_hint("full log")
            self._refused.hint = "; ".join(filter(None, hints))
        self.close()

    def close(self) -> None:
        """End the child and all processes it started. Safe to call twice."""
        self._closing = True
        self._child.close()
        self._log.close()


class CachingHost(EngineHost):
    """Caches answers and refusals, for jobs over one corpus and model; files must not change."""

    def __init__(self, **how: Any) -> None:
        self._cache: dict[str, list[object]] = {}
        super().__init__(**how)

    def _converse(self, request: m.Request[Any], doing: str) -> Iterator[Any]:
        if not request.cacheable:
            yield from super()._converse(request, doing)
            return
        key = repr(request)
        if key in self._cache:
            for answer in self._cache[key]:
                if isinstance(answer, EngineError):
                    self._refused = answer
                    raise answer.with_traceback(None)
                yield answer
            return
        answers: list[object] = []
        # The machine may have more free memory later, so a failure for memory is not cached.
        try:
            for answer in super()._converse(request, doing):
                answers.append(answer)
                yield answer
        except EngineError as error:
            if error is self._refused and not error.exhausted:
                self._cache[key] = [*answers, error]
            raise
        if not any(isinstance(a, m.Measured) and a.refused_by == "host_memory" for a in answers):
            self._cache[key] = answers
