"""vLLM's own words, as a finding shows them."""

from __future__ import annotations

from mmcalib.errors import EngineError


def refusal(error: EngineError) -> str:
    """Why vLLM refuses, without what it was doing."""
    return error.message.partition(" (vLLM, while")[0]
