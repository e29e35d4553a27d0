"""What an error of vLLM comes down to, on one line."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from mmcalib.engine.messages.closing import FailureKind
from mmcalib.releases.constants import NO_ROOM

REFUSAL_CHARS = 300
FAILURE_CHARS = 500


class NotMultimodalError(ValueError):
    """The model takes no media."""


def kind_of(error: BaseException) -> FailureKind:
    match error:
        case NotMultimodalError():
            return "not_multimodal"
        case ModuleNotFoundError(name="vllm" | "torch"):
            return "not_installed"
    return "vllm"


def root_cause(error: BaseException) -> str:
    """The innermost message of a chain of errors: the outer ones only say where."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _line(error)[:REFUSAL_CHARS]


def what_failed(error: BaseException) -> str:
    """The outermost message, and the innermost where it says something else."""
    outer, inner = _line(error), root_cause(error)
    if taken := NO_ROOM.search(outer) or NO_ROOM.search(inner):
        return _no_room(taken)
    if inner in outer:
        return outer[:FAILURE_CHARS]
    return f"{inner} (in: {outer})"[:FAILURE_CHARS]


def _no_room(found: re.Match[str]) -> str:
    free, total = float(found["free"]), float(found["total"])
    # Rounded down: what is free may shrink a little until the next start.
    share = int(free / total * 100) / 100
    less = f"; --gpu-memory-utilization {share:.2f} would fit" if share > 0 else ""
    return (
        f"{found['free']} of {found['total']} GiB are free on {found['device']}, and "
        f"gpu_memory_utilization {found['share']} wants {found['wanted']} GiB: nvidia-smi says who "
        f"holds the rest{less}"
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or f"{type(error).__name__}{_where(error)}"


def _where(error: BaseException) -> str:
    """The line that raised an error without words, such as a bare assertion."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    return f" in {Path(last.filename).name}: {last.line}"
