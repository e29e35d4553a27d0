"""The memory of a GPU on which a configuration starts, from what was found out on another."""

from __future__ import annotations

import math


def needed_bytes(
    *, before_kv_bytes: int, kv_bytes_per_token: int, max_model_len: int, utilization: float
) -> int:
    """The total that leaves, with `utilization` of it, room for one sequence of the whole context
    beside all that comes before the KV cache: less, and vLLM does not start.
    """
    return math.ceil((before_kv_bytes + kv_bytes_per_token * max_model_len) / utilization)
