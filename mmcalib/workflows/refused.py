"""vLLM's own words, as a finding shows them."""

from __future__ import annotations

import re

from mmcalib.errors import EngineError

# What pydantic and argparse add, and no reader needs.
_ADDRESS = re.compile(r" For further information visit https?://\S+")
_FUNCTION = re.compile(r"<function loads at 0x[0-9a-f]+>")


def refusal(error: EngineError) -> str:
    """Why vLLM refuses, without what it was doing."""
    return _FUNCTION.sub("JSON", _ADDRESS.sub("", error.reason))
