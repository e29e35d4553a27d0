"""`vllm serve` on this installation, also where its own script does not start."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mmcalib.engine.environment import SHIM
from mmcalib.engine.wheels import vllm_serves
from mmcalib.processes.environment import safe_environment

_MODULE = "mmcalib.engine.child.serve"


def serve_command(config: Path) -> str:
    """What to type to serve this file here."""
    program = "vllm" if vllm_serves() else "mmcalib"
    return shlex.join([program, "serve", "--config", str(config)])


def become_server(words: Sequence[str], base: Mapping[str, str]) -> NoReturn:
    """Replace this process by `vllm serve WORDS`, with what lets it start here."""
    env = safe_environment(base)
    env["PYTHONPATH"] = os.pathsep.join([str(SHIM), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", _MODULE, "serve", *words]
    os.execve(command[0], command, env)  # noqa: S606 - the user asked for this very program
