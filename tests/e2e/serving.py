"""A real `vllm serve` with an emitted file, on the loopback."""

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bfloat16 import emulated
from tests.builders import some
from tests.conftest import ROOT
from tests.e2e.command import QWEN, environment
from tests.e2e.media import body

sys.path.insert(0, str(ROOT / "benchmarks"))

from judging.server import Server as Server


def prompt_tokens(server: Server, *parts: dict[str, Any]) -> int:
    """Tokens of one user message of these parts, as the server counts them."""
    answer = server.chat(body(*parts, max_tokens=1))
    assert answer.status == 200, answer
    return some(answer.prompt_tokens)


@contextlib.contextmanager
def serving(
    printed: str, folder: Path, out: Path, media: Path, cache: Path, model: str = QWEN
) -> Iterator[Server]:
    """Start the server that a run `printed`, by `out`/engine.yaml, with dummy weights and a small
    KV cache. It may read files below `media`; `folder` keeps its log.
    """
    # The command that the run's last line names, with its program spelled out.
    command = shlex.split(printed.rpartition("Serve:  ")[2].partition("\n")[0])
    assert command[-2:] == ["--config", str(out / "engine.yaml")]
    command = [sys.executable, "-m", "mmcalib", *command[1:], "--"]
    command += ["--dtype", "float32"] if emulated() else []
    env = {**environment(cache), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with contextlib.closing(Server(command, env, model, media, folder / "serve.log")) as server:
        yield server
