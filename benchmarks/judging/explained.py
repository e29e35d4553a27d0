"""Kinds of disagreements and unknowns that stay, each with its reason."""

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
    (
        "false refusal: not an image, video or audio file",
        "An MP3 behind kilobytes of something else: FFmpeg looks for its frames, `check` reads "
        "what a file begins with.",
    ),
    (
        "unknown: a uuid may",
        "vLLM serves what its cache holds under a uuid, and the cache may be older than what is "
        "checked. Once the same data came under it, it is known.",
    ),
    ("unknown: a uuid without data", "The cache may hold it or not."),
    (
        "unknown: .* a part of type",
        "Embeddings and references to tools depend on flags and templates of the server.",
    ),
    (
        "unknown: \\w+ is not modelled",
        "vLLM's schema has the field, and judges its value by what only the server knows: "
        "its vocabulary, its connectors, its plug-ins. It is named, and not let in.",
    ),
    (
        "unknown: .*a text contains .*, which vLLM may count as an item",
        "A placeholder that somebody wrote: where the tokens of an item stand is not certain then.",
    ),
    (
        "unknown: .*text of unknown length",
        "A field changes what the template gets or how much of the prompt is kept, in a way that "
        "is not counted.",
    ),
    (
        "unknown: .*tokens of media \\+ at most",
        "The text is only bounded: its template is counted otherwise beside items, or its messages "
        "are of a kind that is not counted.",
    ),
    (
        "unknown: at most N tokens",
        "The rule of this modality gives the most that an item costs, and the context lies between "
        "the least and the most.",
    ),
    (
        "unknown: no (image|video|audio) of this shape",
        "Nothing was measured that bounds it: sides of extreme ratios, sounds between the longest "
        "that the processor refused and the shortest that it took, and videos of Qwen2.5-Omni, "
        "whose cost does not follow from the numbers of its processor.",
    ),
    (
        "unknown: remote URL",
        "Its host is not one of those that `check` may ask.",
    ),
    (
        "unknown: .*audio without samples",
        "Some models take it, and some refuse it.",
    ),
    (
        "unknown: an MPEG transport stream",
        "OpenCV loses its first group of pictures, and may get no frame.",
    ),
    (
        "unknown: .*a truncated image",
        "Pictures of more than 16 megapixels are not decoded to see whether Pillow takes them.",
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
