"""Disagreements that stay, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Pattern of the cause → why it is so.
REASONS: Sequence[tuple[str, str]] = (
    (
        "false refusal: audio of N samples",
        "Whisper pads whatever it gets to 30 s, so vLLM transcribes a sound without samples, too. "
        "There is nothing to measure in it, and nothing to serve.",
    ),
)

AGAIN = (
    "*served again*: at the second attempt, which vLLM asks for: its first answer was 5xx. The "
    "engine's half of its processor cache lacks a medium that the API server's half has "
    "(`_handle_mm_cache_miss`, vllm/v1/engine/core.py, 0.32). The API server enters a medium "
    "before it refuses the request for its length or its answer, so that the engine never gets "
    "it; and where requests come at once, the halves may push out in different orders. Without a "
    "cache it does not happen."
)


def explained(cause: str) -> str:
    """Empty where nothing explains it."""
    return next((why for pattern, why in REASONS if re.search(pattern, cause)), "")
