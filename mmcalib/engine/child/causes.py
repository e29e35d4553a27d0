"""What an error of vLLM comes down to, on one line."""

from __future__ import annotations

import traceback
from pathlib import Path

REFUSAL_CHARS = 300
FAILURE_CHARS = 500


def root_cause(error: BaseException) -> str:
    """The innermost message of a chain of errors: the outer ones only say where."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _line(error)[:REFUSAL_CHARS]


def what_failed(error: BaseException) -> str:
    """The outermost message, and the innermost where it says something else."""
    outer, inner = _line(error), root_cause(error)
    if inner in outer:
        return outer[:FAILURE_CHARS]
    return f"{inner} (in: {outer})"[:FAILURE_CHARS]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or f"{type(error).__name__}{_where(error)}"


def _where(error: BaseException) -> str:
    """The line that raised an error without words, such as a bare assertion."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    return f" in {Path(last.filename).name}: {last.line}"
