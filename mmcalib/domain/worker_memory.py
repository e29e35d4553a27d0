"""What vLLM's worker measured of its GPU."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """What vLLM's CUDA worker measured of its GPU at a start, and decided; bytes. None where the
    installed release keeps no such figure.

    `kv_cache_bytes` = requested − weights − beside − activation peak − CUDA graphs, as vLLM
    computed it. `beside_bytes` is what it counts beside the weights, in torch and outside it, and
    `non_torch_bytes` the part outside. `cudagraph_bytes` is the estimate that was subtracted,
    `cudagraph_captured_bytes` what the graphs then took. `phases` are peaks of a second profile
    above its start, by the names that a rehearsal has for them.
    """

    runner: str
    total_bytes: int | None = None
    free_before_bytes: int | None = None
    requested_bytes: int | None = None
    weights_bytes: int | None = None
    activation_peak_bytes: int | None = None
    phases: dict[str, int] = field(default_factory=dict)
    beside_bytes: int | None = None
    non_torch_bytes: int | None = None
    cudagraph_bytes: int | None = None
    cudagraph_captured_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
