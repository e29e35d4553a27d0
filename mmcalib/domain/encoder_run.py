"""What one batch through the encoder took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncoderRun:
    """What one batch took: `embeds` are of one item, bytes of all of them.

    `output_bytes` are what goes into vLLM's encoder cache, `input_bytes` the batched tensors that
    the encoder is given. `peak_bytes` is the most held at once above these, outputs included.
    """

    embeds: int
    output_bytes: int
    input_bytes: int
    peak_bytes: int
    seconds: float
