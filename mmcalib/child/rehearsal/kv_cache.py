"""What vLLM makes of the memory that is left: blocks, tokens, requests of full length at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmcalib.releases import kv_cache


@dataclass(frozen=True, slots=True)
class KvCache:
    """`tokens` and `concurrency` are None where vLLM would not start; `problem` is its reason."""

    bytes_per_token: int
    tokens: int | None
    concurrency: float | None
    problem: str = ""


def lay_out(config: Any, worker: Any, available_bytes: int) -> KvCache:
    """Divide the available bytes as vLLM's engine core would."""
    specs = worker.get_kv_cache_spec()
    per_token = round(sum(spec.page_size_bytes / spec.block_size for spec in specs.values()))
    if not specs:
        return KvCache(0, 0, None, "this model keeps no KV cache")
    kv_cache.resolve_layout(config, worker, list(specs.values()))
    try:
        layout = kv_cache.kv_cache_config(config, specs, available_bytes)
    except ValueError as error:
        return KvCache(per_token, None, None, " ".join(str(error).split()))
    tokens, concurrency = kv_cache.kv_cache_tokens(config, layout)
    return KvCache(per_token, tokens, concurrency)
