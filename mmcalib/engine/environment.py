"""The environment in which the engine child runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mmcalib.processes.environment import safe_environment

SHIM = Path(__file__).parent / "shim"

# Set for the child's process, it makes every worker behave as on a card with so many bytes.
CARD = "MMCALIB_CARD_BYTES"


def shimmed_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment with what lets vLLM be imported on this installation."""
    env = safe_environment(base)
    env["PYTHONPATH"] = os.pathsep.join([str(SHIM), *filter(None, [env.get("PYTHONPATH")])])
    return env


def child_environment(
    base: Mapping[str, str],
    *,
    offline: bool,
    foreign: bool = False,
    threads: int | None = None,
) -> dict[str, str]:
    """The parent's environment with what vLLM needs to run quietly under a parent.

    A `foreign` interpreter has its own packages: it gets nothing of the parent's path, on which
    other versions of them may lie, and finds mmcalib by the shim.

    The engine core runs inside the child (one process to watch and to kill), logs go to stderr,
    usage statistics are off, and `offline` keeps transformers from asking a hub for local models.
    """
    own = {k: v for k, v in base.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    env = shimmed_environment(own if foreign else base)
    env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    env["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    env["VLLM_NO_USAGE_STATS"] = "1"
    env["DO_NOT_TRACK"] = "1"
    env["TOKENIZERS_PARALLELISM"] = "false"
    env.setdefault("VLLM_LOGGING_COLOR", "0")
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    if offline:
        env["HF_HUB_OFFLINE"] = "1"
    return env
