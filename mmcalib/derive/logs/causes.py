"""What goes wrong with memory, or with a budget of it, as vLLM and PyTorch say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """PyTorch had nothing left on the GPU. All in bytes, None where the message leaves it out."""

    tried_bytes: int | None = None
    gpu: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    process_bytes: int | None = None
    allocated_bytes: int | None = None
    graph_pools_bytes: int | None = None
    unallocated_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AllocationFailed:
    """The warning of PyTorch's allocator before it frees its cache and tries again: no failure."""

    tried_bytes: int
    gpu: int
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class SamplerOutOfMemory:
    """The warm-up with `dummy_requests` (at most max_num_seqs) of sampler or pooler failed."""

    dummy_requests: int


@dataclass(frozen=True, slots=True)
class NoKvCache:
    """Nothing is left for the KV cache: "No available memory for the cache blocks"."""


@dataclass(frozen=True, slots=True)
class KvCacheTooSmall:
    """The KV cache does not hold one request of `max_model_len` tokens.

    V1 states bytes, V0 the tokens that fit.
    """

    max_model_len: int
    needed_bytes: int | None = None
    available_bytes: int | None = None
    estimated_max_model_len: int | None = None
    fits_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GpuOccupied:
    """Less was free at the start than gpu_memory_utilization asks for."""

    free_bytes: int
    total_bytes: int
    gpu_memory_utilization: float
    requested_bytes: int


@dataclass(frozen=True, slots=True)
class ItemRefused:
    """A request's item has more tokens than the encoder cache (HTTP 400)."""

    modality: str
    item_tokens: int
    encoder_cache_tokens: int


@dataclass(frozen=True, slots=True)
class ItemAboveBatch:
    """A model that cannot chunk multimodal input has an item larger than max_num_batched_tokens."""

    item_tokens: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class ProcessKilled:
    """A process of vLLM was killed; by signal 9 it is mostly the host that had no memory left."""

    process: str
    signal: int


@dataclass(frozen=True, slots=True)
class ExternalWeights:
    """Weights that another process holds take all that vLLM may use."""

    weights_bytes: int
    total_bytes: int
    requested_bytes: int


@dataclass(frozen=True, slots=True)
class FrontendDecoding:
    """What API servers decode videos with on the GPU takes all that is left for the KV cache."""

    reserved_bytes: int
    available_bytes: int


Cause = (
    OutOfMemory
    | AllocationFailed
    | SamplerOutOfMemory
    | NoKvCache
    | KvCacheTooSmall
    | GpuOccupied
    | ExternalWeights
    | FrontendDecoding
    | ItemRefused
    | ItemAboveBatch
    | ProcessKilled
)
