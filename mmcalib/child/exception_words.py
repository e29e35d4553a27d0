"""What an error of vLLM comes down to, on one line."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from mmcalib import processes
from mmcalib.engine.messages import FailureKind
from mmcalib.releases.constants import MACHINE_FULL, NO_ROOM
from mmcalib.releases.release import TargetMoved, installed

_OURS = Path(__file__).resolve().parent.parent

REFUSAL_CHARS = 300
FAILURE_CHARS = 500
# Where in PyTorch's own code a condition did not hold.
_ENFORCED = re.compile(r"^\[enforce fail at [^]]*\] [\w.]+ == [\w.]+ ")


class NotMultimodalError(ValueError):
    """The model takes no media."""


def kind_of(error: BaseException) -> FailureKind:
    match error:
        case NotMultimodalError():
            return "not_multimodal"
        case ModuleNotFoundError(name="vllm" | "torch"):
            return "not_installed"
    return "moved" if moved(error) else "vllm"


def refusal_of(error: Exception) -> str:
    """Why vLLM refuses one of several things. What its release lacks is no refusal, and raised
    again: where vLLM is reached for, since elsewhere an odd item may bring an error about.
    """
    if moved(error, within=_OURS / "releases"):
        raise error
    return root_cause(error)


def moved(error: BaseException, within: Path = _OURS) -> bool:
    """Whether the installed release lacks what mmcalib reached for, or takes it in another way: the
    error came up in mmcalib's own line, and not in vLLM's code.
    """
    if isinstance(error, TargetMoved):
        return True
    if not isinstance(error, AttributeError | ImportError | TypeError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    # A class may answer for missing attributes itself, in its own line.
    while frames and frames[-1].name == "__getattr__":
        frames.pop()
    return bool(frames) and Path(frames[-1].filename).is_relative_to(within)


def root_cause(error: BaseException) -> str:
    """The innermost message of a chain of errors: the outer ones only say where."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _line(error)[:REFUSAL_CHARS]


def exhausted(error: BaseException) -> str:
    """The same of what vLLM raises, PyTorch or a GPU."""
    if found := processes.exhausted(error):
        return found
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "OutOfMemoryError" or MACHINE_FULL.search(str(cause)):
            return "memory"
        cause = cause.__cause__
    return ""


def what_failed(error: BaseException) -> str:
    """The outermost message, and the innermost where it says something else."""
    if kind_of(error) == "moved":
        return f"this is not the vLLM that mmcalib knows ({installed('vllm')}): {_line(error)}"
    outer, inner = _line(error), root_cause(error)
    taken = NO_ROOM.search(outer) or NO_ROOM.search(inner)
    if taken and not taken["external"]:
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
        f"{found['free']} of {found['total']} GiB are free on {found['device'] or 'the GPU'}, and "
        f"gpu_memory_utilization {found['share']} wants {found['wanted']} GiB: nvidia-smi says who "
        f"holds the rest{less}"
    )


def _line(error: BaseException) -> str:
    words = _ENFORCED.sub("", " ".join(str(error).split()))
    return words or f"{type(error).__name__}{_where(error)}"


def _where(error: BaseException) -> str:
    """The line that raised an error without words, such as a bare assertion."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    return f" in {Path(last.filename).name}: {last.line}"
