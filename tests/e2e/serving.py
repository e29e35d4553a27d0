"""A real `vllm serve` with an emitted file, on the loopback."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bfloat16 import emulated
from tests.e2e.command import QWEN, environment

START_S = 900


class Server:
    """One `vllm serve` on the loopback."""

    def __init__(self, port: int, model: str) -> None:
        self.url, self.model = f"http://127.0.0.1:{port}", model

    def ask(self, *parts: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """HTTP status and answer for one user message of these parts."""
        return self.send(body(*parts))

    def send(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps({"model": self.model, **asked}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def prompt_tokens(self, *parts: dict[str, Any]) -> int:
        status, answer = self.ask(*parts)
        assert status == 200, answer
        tokens: int = answer["usage"]["prompt_tokens"]
        return tokens

    def ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
            return True
        return False


def body(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request of one user message of these parts."""
    content = [{"type": "text", "text": "Describe."}, *parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1, **fields}


def part(modality: str, path: Path) -> dict[str, Any]:
    return {"type": f"{modality}_url", f"{modality}_url": {"url": path.as_uri()}}


@contextlib.contextmanager
def serving(
    printed: str, folder: Path, out: Path, media: Path, cache: Path, model: str = QWEN
) -> Iterator[Server]:
    """Start the server that a run `printed`, by `out`/engine.yaml, with dummy weights and a small
    KV cache. It may read files below `media`; `folder` keeps its log.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The command that the run's last line names, with its program spelled out.
    command = shlex.split(printed.rpartition("Serve:  ")[2].partition("\n")[0])
    assert command[-2:] == ["--config", str(out / "engine.yaml")]
    command = [
        *(sys.executable, "-m", "mmcalib", *command[1:], "--", "--host", "127.0.0.1"),
        *("--port", str(port), "--load-format", "dummy"),
        *("--kv-cache-memory-bytes", str(1 << 29), "--allowed-local-media-path", str(media)),
        *(["--dtype", "float32"] if emulated() else []),
    ]
    env = {**environment(cache), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = folder / "serve.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, env=env, stdout=sink, stderr=sink, start_new_session=True
        )
    server = Server(port, model)
    try:
        deadline = time.monotonic() + START_S
        while not server.ready():
            tail = log.read_text(errors="replace")[-2000:]
            assert process.poll() is None, tail
            assert time.monotonic() < deadline, tail
            time.sleep(1)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
