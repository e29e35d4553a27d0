"""Environment variables of the child process and of `vllm serve`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mmcalib.processes import safe_environment
from mmcalib.version import BUILDS, installed_version, is_mismatched

SHIM = Path(__file__).parent / "shim"
_MEDIA_PACKAGES = ("torchvision", "torchaudio", "torchcodec")

# Set in the child's environment: workers behave as on a card with this many bytes.
CARD_VARIABLE = "MMCALIB_CARD_BYTES"


def shimmed_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the shim that makes vLLM importable in this installation."""
    env = safe_environment(base)
    env["PYTHONPATH"] = os.pathsep.join([str(SHIM), *filter(None, [env.get("PYTHONPATH")])])
    return env


def child_environment(base: Mapping[str, str], *, foreign: bool = False) -> dict[str, str]:
    """Return the parent's environment with the variables that vLLM needs in the child.

    A `foreign` interpreter does not get the parent's path; it finds mmcalib through the shim. The
    engine core runs inside the child, logs go to stderr, usage statistics are off, and transformers
    does not ask a hub about local models.
    """
    own = {k: v for k, v in base.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    env = shimmed_environment(own if foreign else base)
    env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    env["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    env["VLLM_NO_USAGE_STATS"] = "1"
    env["DO_NOT_TRACK"] = "1"
    env["TOKENIZERS_PARALLELISM"] = "false"
    env.setdefault("VLLM_LOGGING_COLOR", "0")
    env["HF_HUB_OFFLINE"] = "1"
    return env


def serve_program() -> str:
    """Return the program that can start a server in this installation.

    The script `vllm` needs its package (vllm/entrypoints/cli/main.py, 0.32) and torch's media ones.
    """
    is_whole = installed_version(BUILDS[0]) and not any(map(is_mismatched, _MEDIA_PACKAGES))
    return "vllm serve" if is_whole else "mmcalib serve"


def serve_command(config: Path) -> str:
    return f"{serve_program()} {shlex.join(['--config', str(config)])}"


def become_server(words: Sequence[str], base: Mapping[str, str]) -> NoReturn:
    """Replace this process with `vllm serve WORDS`, with the shim on its path."""
    command = [sys.executable, "-P", "-m", "mmcalib.child.serve", "serve", *words]
    os.execve(command[0], command, shimmed_environment(base))  # noqa: S606 - the user asked for this very program
