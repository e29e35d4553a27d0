"""What one item costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmcalib.wording import share

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


@dataclass(frozen=True, slots=True)
class Retention:
    """What items of one modality keep of the tokens that they take by default. `mean` is over all
    items, `worst` of the item that keeps least, `exemplar`; both are shares of its tokens.
    """

    items: int
    items_smaller: int = 0
    mean: float = 1.0
    worst: float = 1.0
    exemplar: str = ""

    def describe(self, modality: str) -> str:
        """`images keep 48.0% of their tokens on average, the worst 10.3%`."""
        which = {"audio": "sounds"}.get(modality, f"{modality}s")
        kept = f"{which} keep {share(self.mean)} of their tokens on average"
        return f"{kept}, the worst {share(self.worst)}"
