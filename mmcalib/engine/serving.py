"""`vllm serve` on this installation, also where its own script does not start."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mmcalib.engine.environment import shimmed_environment
from mmcalib.engine.wheels import vllm_serves

_MODULE = "mmcalib.child.serve"


def serve_command(config: Path) -> str:
    """What to type to serve this file here."""
    program = "vllm" if vllm_serves() else "mmcalib"
    return shlex.join([program, "serve", "--config", str(config)])


def become_server(words: Sequence[str], base: Mapping[str, str]) -> NoReturn:
    """Replace this process by `vllm serve WORDS`, with what lets it start here."""
    command = [sys.executable, "-P", "-m", _MODULE, "serve", *words]
    os.execve(command[0], command, shimmed_environment(base))  # noqa: S606 - the user asked for this very program
