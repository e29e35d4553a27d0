"""vLLM's own words, as a finding or an error shows them."""

from __future__ import annotations

import re

from mmcalib.errors import EngineError

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
