"""The emitted file in a real `vllm serve`, asked over HTTP: the served `usage` is the truth."""

from __future__ import annotations

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

import pytest

from mmcalib.models import cut_checkpoint, find, materialise
from mmcalib.workflows.gate.calibration import Calibration
from tests.bfloat16 import emulated
from tests.e2e.command import QWEN, environment, mmcalib
from tests.e2e.media import clip, photo

pytestmark = [pytest.mark.engine, pytest.mark.slow]

START_S = 400


class Server:
    """One `vllm serve` on the loopback."""

    def __init__(self, port: int, model: str) -> None:
        self.url, self.model = f"http://127.0.0.1:{port}", model

    def ask(self, *parts: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """HTTP status and answer for one user message of these parts."""
        content = [{"type": "text", "text": "Describe."}, *parts]
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 1,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
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


def part(modality: str, path: Path) -> dict[str, Any]:
    return {"type": f"{modality}_url", f"{modality}_url": {"url": path.as_uri()}}


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, engine_cache: Path
) -> Iterator[tuple[Server, Calibration, Path]]:
    """A calibration of three files, and a server started with nothing but its engine.yaml and what
    a machine without weights and GPU needs: the cut checkpoint, dummy weights, a small KV cache.
    """
    folder = tmp_path_factory.mktemp("serve")
    media = folder / "media"
    photo(media / "wide.jpg", 1280, 720, 1)
    photo(media / "small.jpg", 200, 300, 2)
    clip(media / "clip.mp4", 320, 240, frames=40)
    out = folder / "out"
    words = ("run", "--model", QWEN, "--data", media, "--count", "image=2", "--out", out)
    done = mmcalib(engine_cache, *words, "--max-model-len", "16384", "--validate", "budget")
    assert done.returncode == 0, done.stderr
    geometry = find(QWEN)
    assert geometry is not None
    whole = materialise(geometry, folder / "whole")
    cut = cut_checkpoint(whole, folder / "cut", text_layers=2, encoder_layers=2).path
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The command that the run's last line names, with its program spelled out.
    printed = shlex.split(done.stderr.rpartition("serve with: ")[2])
    assert printed[-2:] == ["--config", str(out / "engine.yaml")]
    program = [sys.executable, "-m", "mmcalib"] if printed[0] == "mmcalib" else ["vllm"]
    command = [
        *(*program, *printed[1:], *(["--"] if printed[0] == "mmcalib" else [])),
        *(str(cut), "--host", "127.0.0.1", "--port", str(port)),
        *("--load-format", "dummy", "--enforce-eager", "--kv-cache-memory-bytes", str(1 << 29)),
        *("--allowed-local-media-path", str(media)),
        *(["--dtype", "float32"] if emulated() else []),
    ]
    env = {**environment(engine_cache), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = folder / "serve.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, env=env, stdout=sink, stderr=sink, start_new_session=True
        )
    server = Server(port, str(cut))
    try:
        deadline = time.monotonic() + START_S
        while not server.ready():
            tail = log.read_text(errors="replace")[-2000:]
            assert process.poll() is None, tail
            assert time.monotonic() < deadline, tail
            time.sleep(1)
        yield server, Calibration.load(out / "calibration.json"), media
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_served_usage_is_what_was_measured(
    served: tuple[Server, Calibration, Path],
) -> None:
    server, calibration, media = served
    text_only = server.prompt_tokens()
    corpus = calibration.corpus.modalities
    # The placeholder's begin and end stand around each item, in the prompt and not in the item.
    around = 2
    wide = server.prompt_tokens(part("image", media / "wide.jpg"))
    assert wide - text_only == corpus["image"].tokens.max + around
    both = server.prompt_tokens(
        part("image", media / "wide.jpg"), part("image", media / "small.jpg")
    )
    assert both - wide == corpus["image"].tokens.min + around
    video = server.prompt_tokens(part("video", media / "clip.mp4"))
    assert video - text_only == corpus["video"].tokens.max + around


def test_what_the_limits_exclude_is_rejected_and_the_server_lives_on(
    served: tuple[Server, Calibration, Path],
) -> None:
    server, _, media = served
    status, answer = server.ask(*[part("image", media / "small.jpg")] * 3)
    assert status == 400
    assert "At most 2 image" in json.dumps(answer)
    assert server.prompt_tokens(part("image", media / "small.jpg")) > 0


def test_a_larger_image_than_the_corpus_held_is_shrunk_to_the_cap(
    served: tuple[Server, Calibration, Path], tmp_path: Path
) -> None:
    """The cap is real in the server too: nothing larger than what was reserved gets through."""
    server, calibration, media = served
    larger = photo(media / "larger.jpg", 3000, 2000, 3)
    tokens = server.prompt_tokens(part("image", larger)) - server.prompt_tokens()
    assert tokens - 2 <= calibration.budget.calibrated.max_tokens_per_item["image"]
