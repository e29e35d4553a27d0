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
    "answered by 5xx at first, after one of their order that vLLM had refused, and served when "
    "they were sent again. vLLM enters a medium in the API server's half of its processor cache "
    "before it refuses the request for its length or its answer, so the engine's half never gets "
    "it; the next request of that medium goes without its data, and the engine asks for it by an "
    "`Internal server error` (`_handle_mm_cache_miss`, vllm/v1/engine/core.py, 0.32). Without a "
    "cache it does not happen, nor where what `check` refuses is not sent."
)


def explained(cause: str) -> str:
    """Empty where nothing explains it."""
    return next((why for pattern, why in REASONS if re.search(pattern, cause)), "")
