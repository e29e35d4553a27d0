"""One real `vllm serve` on the loopback: started, asked, and ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml

from mmcalib.engine.environment import child_environment
from mmcalib.errors import MmcalibError

START_S = 3600.0
ANSWER_S = 600.0
# Enough of a small model's blocks for several requests at once; vLLM would take a share of the
# machine's memory.
KV_CACHE_BYTES = 1 << 30
_SERVE = Path(__file__).with_name("serve.py")
_LAST_LINES = 15
# The server closes a connection after an error, so none is used again.
_CLOSE = {"Connection": "close"}
_JSON = {**_CLOSE, "Content-Type": "application/json"}
_MOST_SAID_CHARS = 600


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is 0 where the connection broke; `said` the error's words, or nothing."""

    status: int
    said: str
    prompt_tokens: int | None = None


class ServerDiedError(MmcalibError):
    """The process has ended; the message has the last lines of its log."""


class Server:
    """Started at once by a command, with what a machine without weights and GPU needs.

    Raises ServerDiedError where it does not come up. Its process leads a group of its own, so that
    `close` leaves no orphan.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], model: str, media: Path, log: Path
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.model, self._log = f"http://127.0.0.1:{port}", model, log
        how: dict[str, Any] = {"timeout": ANSWER_S, "retries": False, "headers": _CLOSE}
        self._pool = urllib3.HTTPConnectionPool("127.0.0.1", port, **how)
        command = [
            *(*command, "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy"),
            *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
            *("--allowed-local-media-path", str(media)),
        ]
        log.parent.mkdir(parents=True, exist_ok=True)
        self._sink = log.open("ab")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": self._sink}
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            command, env=env, stderr=self._sink, start_new_session=True, **pipes
        )
        try:
            self._await()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._sink.close()
        self._pool.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and self._get("/health") == 200

    def chat(self, body: Mapping[str, Any]) -> Answer:
        """One request to /v1/chat/completions. A long answer is streamed and left at its start."""
        sent = json.dumps({"model": self.model, **body}).encode()
        return self._post("/v1/chat/completions", body=sent, headers=_JSON)

    def transcribe(self, path: Path) -> Answer:
        """One file to /v1/audio/transcriptions."""
        fields = {"model": self.model, "max_completion_tokens": "1", "language": "en"}
        file = (path.name, path.read_bytes(), "application/octet-stream")
        return self._post("/v1/audio/transcriptions", fields={**fields, "file": file})

    def forget_media(self) -> None:
        """Empty the processor's cache and the encoder's, as at the start."""
        for path in ("/reset_mm_cache", "/reset_encoder_cache"):
            self._post(path)

    def last_lines(self) -> str:
        lines = self._log.read_text("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])

    def _await(self) -> None:
        deadline = time.monotonic() + START_S
        while self._get("/health") != 200:
            if self._process.poll() is not None:
                raise ServerDiedError(f"vllm serve has ended:\n{self.last_lines()}")
            if time.monotonic() > deadline:
                raise ServerDiedError(
                    f"vllm serve is not up in {START_S:.0f} s:\n{self.last_lines()}"
                )
            time.sleep(0.5)

    def _get(self, path: str) -> int:
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            return self._pool.request("GET", path, timeout=5).status
        return 0

    def _post(self, path: str, **sent: Any) -> Answer:
        try:
            response = self._pool.request("POST", path, preload_content=False, **sent)
            with contextlib.closing(response):
                if "event-stream" in response.headers.get("Content-Type", ""):
                    return _first(response)
                return _whole(response.status, response.read())
        except urllib3.exceptions.TimeoutError as error:
            return Answer(0, f"TimeoutError: {error}")
        except urllib3.exceptions.HTTPError as error:
            return Answer(0, f"{type(error).__name__}: {error}")


def serve_narrowed(engine_yaml: Path, model: str, media: Path, log: Path) -> Server:
    # Every CPU computes in float32, in which media take twice the bytes that the file is for.
    command = [
        *(sys.executable, "-P", str(_SERVE), "serve", model, "--config", str(engine_yaml)),
        *("--enforce-eager", "--dtype", "float32", *_twice_the_cache(engine_yaml)),
    ]
    env = child_environment(os.environ)
    # The API server and the engine in two processes, as users have them.
    del env["VLLM_ENABLE_V1_MULTIPROCESSING"]
    # For `/reset_mm_cache`, which makes a failing order of requests repeatable.
    env["VLLM_SERVER_DEV_MODE"] = "1"
    # Threads that wait for each other by spinning cost more than they bring on a busy machine, and
    # media are decoded beside them.
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return Server(command, env, model, media, log)


def _twice_the_cache(engine_yaml: Path) -> list[str]:
    """Flags; none where the file says nothing: an encoder-decoder has no cache."""
    named = "mm-processor-cache-gb"
    settings = yaml.safe_load(engine_yaml.read_text("utf-8"))
    return [f"--{named}", str(2 * float(settings[named]))] if named in settings else []


def _first(lines: Iterable[bytes]) -> Answer:
    """Read a stream's first event: an error may come there, too."""
    for line in lines:
        if line.startswith(b"data: {"):
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                error = event["error"]
                return Answer(int(error.get("code") or 500), str(error.get("message", error)))
            return Answer(200, "")
    return Answer(0, "the stream ended before it began")


def _whole(status: int, text: bytes) -> Answer:
    try:
        found = json.loads(text or b"{}")
    except ValueError:
        return Answer(status, _shortened(text.decode(errors="replace")))
    if status == 200:
        usage = (found or {}).get("usage") or {}
        return Answer(status, "", usage.get("prompt_tokens"))
    error = found.get("error", found) if isinstance(found, dict) else found
    said = error.get("message", error) if isinstance(error, dict) else error
    return Answer(status, _shortened(str(said)))


def _shortened(said: str) -> str:
    """Some of vLLM's messages hold the whole clip; what went wrong stands at the ends."""
    half = _MOST_SAID_CHARS // 2
    return said if len(said) <= _MOST_SAID_CHARS else f"{said[:half]} … {said[-half:]}"
