"""What a container with a server needs of its host, as far as its configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, PROCESSOR_CACHES
from mmcalib.sizes import GIB

# A container gets 64 MiB of shared memory unless told otherwise. vLLM's workers and NCCL hand their
# buffers over there; it is a limit, and what nobody writes to takes nothing.
SHM_BYTES: Final = 8 * GIB
_MOST: Final = 1e9


def shm_bytes(config: Mapping[str, Any]) -> int:
    """The limit on shared memory: with `mm_processor_cache_type: shm` that cache is there, too."""
    shared = config.get("mm_processor_cache_type") == "shm"
    return SHM_BYTES + (_cache_bytes(config) if shared else 0)


def processor_caches_bytes(config: Mapping[str, Any]) -> int:
    """What the processor caches of a server may hold in main memory, by vLLM's own words."""
    if config.get("mm_processor_cache_type") == "shm":
        return 0
    servers = _figure(config, "data_parallel_size", 1)
    return round(_cache_bytes(config) * PROCESSOR_CACHES * servers)


def _cache_bytes(config: Mapping[str, Any]) -> int:
    return round(_figure(config, "mm_processor_cache_gb", PROCESSOR_CACHE_GIB) * GIB)


def _figure(config: Mapping[str, Any], name: str, default: float) -> float:
    """The default for what vLLM would not take either: a file may have been changed by hand."""
    given = config.get(name)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < _MOST:
        return default
    return given
