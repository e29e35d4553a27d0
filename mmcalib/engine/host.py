"""The parent's side of the child process that owns vLLM."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mmcalib.closing import Closing
from mmcalib.engine.environment import child_environment
from mmcalib.engine.log import ChildLog, LogTail, last_line
from mmcalib.engine.messages import (
    Failed,
    Interim,
    Measure,
    Measured,
    Message,
    OpenModel,
    Reply,
    Request,
    Said,
    decode,
    encode,
)
from mmcalib.errors import (
    EngineDied,
    EngineError,
    EngineSilent,
    NotMultimodal,
    VllmMissing,
    VllmMoved,
    VllmRefused,
)
from mmcalib.processes.pipe import patient_pipe
from mmcalib.processes.spawn import in_words

R = TypeVar("R", bound=Reply)

# Engine starts compile kernels and load tens of gigabytes. Silence beyond this is a hang.
SILENCE_S = 900.0
# A processor call on the largest video known takes about a minute on two cores.
FILE_SILENCE_S = 300.0
_POLL_S = 0.2
_TERM_GRACE_S = 2.0
_WHAT_WORKS = "mmcalib doctor says whether mmcalib is tested with this release of vLLM"


class EngineHost(Closing):
    """One long-lived child process; ask it one thing at a time.

    `on_said` hears how far a request is, `on_log` every line that the child prints. `python` is the
    interpreter whose vLLM is asked; another than this one needs no mmcalib of its own. `threads` is
    how many each of torch's operations may take; torch's own choice where it is None.

    Its crash, kill or silence raises `EngineDied` with the last line of its log. Closing kills the
    whole process group, so nothing that vLLM started outlives it.
    """

    def __init__(
        self,
        *,
        log: Path | None = None,
        python: str = sys.executable,
        offline: bool = True,
        silence_s: float = SILENCE_S,
        threads: int | None = None,
        on_said: Callable[[str], None] = lambda text: None,
        on_log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.on_said = on_said
        self._named_log, self._on_log = log, on_log
        self._python, self._offline, self._threads_of_child = python, offline, threads
        self._silence_s = silence_s
        self._opened: OpenModel | None = None
        self._refused: EngineError | None = None
        self._start()

    def _start(self) -> None:
        self._log = ChildLog(self._named_log)
        self._tail = LogTail(self._log.path, self._on_log)
        self._pipe, child_end = patient_pipe(self._silence_s)
        with self._log.path.open("ab") as sink:
            self._process = subprocess.Popen(
                [self._python, "-P", "-m", "mmcalib.child", str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=child_environment(
                    os.environ,
                    offline=self._offline,
                    foreign=self._python != sys.executable,
                    threads=self._threads_of_child,
                ),
                pass_fds=[child_end.fileno()],
                start_new_session=True,
            )
        child_end.close()
        self._forsaken = self._ended = False

    def revive(self) -> None:
        """Another child in place of one that has died, with the model open that was opened last.
        Raises as `ask`.
        """
        self.close()
        self._start()
        if self._opened is not None:
            self.ask(replace(self._opened, tries=False), "opening the model again")

    @property
    def ended(self) -> bool:
        """Whether it was closed, or has died."""
        return self._ended

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Request[R], doing: str) -> R:
        """Send one request and wait for its closing reply.

        Raises `VllmRefused` with vLLM's words when it fails, `VllmMoved` where this release has no
        such thing, `VllmMissing` without vLLM, `EngineDied` when the child is gone.
        """
        if isinstance(request, OpenModel):
            self._opened = request
        closing = request.reply()
        for answer in self._converse(request, doing):
            if isinstance(answer, closing):
                return answer
        raise EngineError(f"the engine gave no answer while {doing}")

    def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
        """Yield one `Measured` per subject, in order, as they come. Of files, of which nobody knows
        what they do to vLLM's decoders, none may take as long as other silence.
        """
        silence_s = self._silence_s
        if request.of_files:
            silence_s = min(silence_s, FILE_SILENCE_S)
        for answer in self._converse(request, doing, silence_s):
            if isinstance(answer, Measured):
                yield answer

    def _converse(
        self, request: Request[Any], doing: str, silence_s: float | None = None
    ) -> Iterator[Message]:
        silence_s = silence_s or self._silence_s
        if self._pipe.closed:
            hint = f"its log: {self._log.path}" if self._log.path.exists() else ""
            raise EngineDied(f"the engine process had ended before {doing}", hint=hint)
        try:
            self._pipe.send_bytes(encode(request))
        except BlockingIOError:
            raise self._silent(doing, self._silence_s) from None
        except OSError:
            raise self._died(doing) from None
        while True:
            answer = decode(self._receive(doing, silence_s))
            if isinstance(answer, Said):
                self.on_said(answer.text)
                continue
            if isinstance(answer, Interim):
                yield answer
                continue
            self._tail.follow()
            if isinstance(answer, Failed):
                self._refused = self._failed(answer, doing)
                raise self._refused
            yield answer
            return

    def _failed(self, answer: Failed, doing: str) -> EngineError:
        message = f"{answer.error} (vLLM, while {doing})"
        match answer.kind:
            case "not_installed":
                return VllmMissing()
            case "not_multimodal":
                return NotMultimodal(message, reason=answer.error)
            case "moved":
                return VllmMoved(message, reason=answer.error, hint=_WHAT_WORKS)
            case "vllm":
                return VllmRefused(message, reason=answer.error, exhausted=answer.exhausted)

    def _receive(self, doing: str, silence_s: float) -> bytes:
        deadline = time.monotonic() + silence_s
        try:
            while not self._pipe.poll(_POLL_S):
                self._tail.follow()
                if self._process.poll() is not None and not self._pipe.poll(0):
                    raise self._died(doing)
                if time.monotonic() > deadline:
                    raise self._silent(doing, silence_s)
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._died(doing) from None

    def _silent(self, doing: str, silence_s: float) -> EngineSilent:
        hint = self._see("its log")
        self.close()
        return EngineSilent(
            f"the engine process said nothing for {silence_s:.0f} s while {doing}", hint=hint
        )

    def _died(self, doing: str) -> EngineDied:
        if self._forsaken:
            return EngineDied(f"the engine process was ended while {doing}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_TERM_GRACE_S)
        code = self._process.returncode
        self._tail.follow()
        last, hint = last_line(self._log.path), self._see("its log")
        self.close()
        message = f"the engine process {in_words(code) if code else 'ended'} while {doing}"
        if code == -signal.SIGKILL:
            # The system does so where memory runs out, and the process says nothing of it.
            why = "the system killed the engine"
            return EngineDied(
                f"{message} (out of memory?)", hint=hint, reason=why, exhausted="memory"
            )
        lacking = "memory" if "std::bad_alloc" in last else ""
        return EngineDied(f"{message}: {last}" if last else message, hint=hint, exhausted=lacking)

    def _see(self, what: str) -> str:
        """A hint at the log, which stays then, unless nothing is in it."""
        kept = self._log.kept()
        return f"{what}: {kept}" if kept else ""

    def kill(self) -> None:
        """End the child at once, from another thread than the one that is asking it: no error of
        that one is worth a log.
        """
        self._forsaken = True
        if not self._ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def __exit__(self, *raised: object) -> None:
        """A refusal that ends the job names the log; most refusals are trials, and keep none."""
        if self._refused is not None and self._refused in raised:
            hints = self._refused.hint, self._see("full log")
            self._refused.hint = "; ".join(filter(None, hints))
        self.close()

    def close(self) -> None:
        """End the child and everything it started. Safe to call twice."""
        if self._ended:  # its number may be that of another process by now
            return
        self._forsaken = True
        self._pipe.close()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_TERM_GRACE_S)
        self._log.close()
        self._ended = True
