"""A rehearsal beside the start on a GPU that it was of, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.worker_memory import WorkerMemory
from mmcalib.engine.messages import EngineStarted

# What a prediction must keep to be worth planning with: the KV pool off by no more than this share
# either way, promised beyond the real one by no more than that, and the encoder's peak.
KV_OFF: Final = 0.03
KV_OVER: Final = 0.01
ENCODER_OFF: Final = 0.10
# Totals of one GPU are read the same way and differ by nothing; those of others by gibibytes.
_SAME_TOTAL: Final = 0.01


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the memory, in bytes (tokens where its name says so)."""

    name: str
    predicted: int
    measured: int

    @property
    def off(self) -> float | None:
        """The error as a share of what was measured; None of nothing."""
        return self.predicted / self.measured - 1 if self.measured else None


def components(after: Rehearsed, figures: EngineStarted) -> list[Component]:
    """Every figure that both have. On another GPU than the rehearsed one only those that do not
    depend on how much memory there is.
    """
    found = [
        ("weights", after.weights_bytes, figures.weights_full_bytes),
        ("KV bytes per token", after.kv_bytes_per_token, figures.kv_full_bytes_per_token),
        ("activation peak", after.activation_peak_bytes, figures.activation_peak_bytes),
    ]
    if (gpu := figures.gpu) is not None:
        peaks = {phase.name: phase.peak_bytes for phase in after.phases}
        found += [(f"{n} peak", peaks[n], gpu.phases.get(n)) for n in peaks]
        beside = after.buffers_bytes + after.non_torch_bytes
        found.append(("beside the weights", beside, gpu.beside_bytes))
        found.append(("CUDA graphs", after.cudagraph_bytes, gpu.cudagraph_bytes))
        if same_gpu(after, gpu):
            found.append(("KV pool", after.kv_cache_bytes, gpu.kv_cache_bytes))
            if after.kv_cache_tokens is not None:
                found.append(("KV pool, tokens", after.kv_cache_tokens, gpu.kv_cache_tokens))
    return [Component(name, ours, theirs) for name, ours, theirs in found if theirs is not None]


def same_gpu(after: Rehearsed, gpu: WorkerMemory) -> bool:
    """Whether the start ran on as much memory as was rehearsed."""
    if gpu.total_bytes is None:
        return False
    return abs(after.total_bytes / gpu.total_bytes - 1) <= _SAME_TOTAL


def misses(found: list[Component]) -> list[str]:
    """Which of a GPU's figures are further off than a prediction may be, in words."""
    off = {one.name: one.off for one in found if one.off is not None}
    missed = []
    if (pool := off.get("KV pool")) is not None:
        if pool > KV_OVER:
            missed.append(f"KV pool over-promised by {pool:.1%}")
        elif abs(pool) > KV_OFF:
            missed.append(f"KV pool off by {pool:+.1%}")
    if (encoder := off.get("encoder peak")) is not None and abs(encoder) > ENCODER_OFF:
        missed.append(f"encoder peak off by {encoder:+.0%}")
    return missed
