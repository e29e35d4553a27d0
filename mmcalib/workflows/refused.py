"""vLLM's own words, as a finding or an error shows them."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmcalib.errors import EngineError, VllmRefused

# What pydantic and argparse add, and no reader needs.
_ADDRESS = re.compile(r" For further information visit https?://\S+")
_FUNCTION = re.compile(r"<function loads at 0x[0-9a-f]+>")
_ONE_ERROR = re.compile(
    r"1 validation error for \w+ Value error, (?P<words>.+?) \[type=value_error"
)


def refusal(error: EngineError) -> str:
    """Why vLLM refuses, without what it was doing."""
    said = _FUNCTION.sub("JSON", _ADDRESS.sub("", error.reason))
    only = _ONE_ERROR.match(said)
    return only["words"] if only else said


@contextlib.contextmanager
def saying_what_to_change(config: Path | None, flags: Sequence[str]) -> Iterator[None]:
    """Let a refusal of this file or of these flags of `vllm serve` say what to do about it."""
    try:
        yield
    except VllmRefused as error:
        if config is not None:
            file = shlex.quote(str(config))
            error.hint = error.hint or f"mmcalib validate --config {file} says what to change in it"
        elif flags:
            error.hint = error.hint or f"change what vLLM names in -- {shlex.join(flags)}"
        raise
