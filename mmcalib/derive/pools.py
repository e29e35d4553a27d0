"""A KV cache of so many bytes, and graphs of such batches, which no start measures anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmcalib.domain.memory import Rehearsed
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.text import MIB


@dataclass(frozen=True, slots=True)
class FixedPool:
    """`left_bytes` is what the rehearsal leaves for the KV cache, of which `spared_bytes` are kept
    free; without graphs there are no `capture_sizes`.
    """

    left_bytes: int
    kv_cache_memory_bytes: int
    capture_sizes: tuple[int, ...] = ()
    spared_bytes: int = 0

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = {"kv_cache_memory_bytes": self.kv_cache_memory_bytes}
        if self.capture_sizes:
            found["cudagraph_capture_sizes"] = list(self.capture_sizes)
        return found

    def on(self, engine_args: Mapping[str, Any]) -> dict[str, Any]:
        return {**engine_args, **self.values}


def fixed_pool(found: Rehearsed, spared_bytes: int = 0) -> FixedPool | None:
    """Whole MiB of what is left, less the slack that vLLM keeps of the size that it suggests, and
    less what is spared for steps that take more than is reserved; None where nothing is left.
    """
    left = found.kv_cache_bytes - VLLM_SLACK_BYTES - spared_bytes
    if left < MIB or found.kv_cache_tokens is None:
        return None
    size = left // MIB * MIB
    return FixedPool(found.kv_cache_bytes, size, found.capture_sizes, spared_bytes)
