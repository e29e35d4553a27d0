"""What one item costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Who says no to an item: vLLM, or this machine, which has no memory for it.
RefusedBy = Literal["vllm", "host_memory"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What vLLM's processor makes of one item.

    `tokens` is the length of its placeholder in the prompt, `embeds` its entries in the encoder
    cache, `tensor_bytes` the processed tensors sent to the encoder. `sampled` is what the loader
    handed over: (width, height), (frames, width, height) or (samples, rate). `load_s` and
    `process_s` are of the wall clock, `cpu_s` the processor seconds of both, of all threads.
    """

    tokens: int
    embeds: int
    tensor_bytes: int
    load_s: float
    process_s: float
    sampled: tuple[int, ...]
    cpu_s: float = 0.0
