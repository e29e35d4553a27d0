"""What serving may take at once above the loaded model, part by part, beside what the encoder cache
still holds (R4).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mmcalib.domain.shapes import Modality
from mmcalib.releases.constants import VLLM_SLACK_BYTES


@dataclass(frozen=True, slots=True)
class Resident:
    """Outputs of items that the encoder cache keeps: those of finished requests stay until they
    are evicted (`EncoderCacheManager`, vllm/v1/core/encoder_cache_manager.py).
    """

    tokens: int = 0
    bytes_per_token: int = 0

    @property
    def nbytes(self) -> int:
        return self.tokens * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class WorstStep:
    """The most that one step may encode of one modality: tokens, and bytes above the model and the
    workspaces that other kernels keep, of `kept_bytes`.

    Where the corpus' own items take more than vLLM's dummies of as many tokens, `items` like
    `exemplar` are in it.
    """

    modality: Modality
    tokens: int
    peak_bytes: int
    resident: Resident = field(default_factory=Resident)
    items: int = 0
    exemplar: str = ""
    kept_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.peak_bytes + self.kept_bytes + self.resident.nbytes


@dataclass(frozen=True, slots=True)
class _FullStep:
    """A step of so many tokens, and what it takes beside what is resident."""

    tokens: int
    peak_bytes: int
    resident: Resident

    @property
    def nbytes(self) -> int:
        return self.peak_bytes + self.resident.nbytes


@dataclass(frozen=True, slots=True)
class LanguageStep(_FullStep):
    """A full step of the language model and its sampler, beside a full encoder cache."""


@dataclass(frozen=True, slots=True)
class PromptsStep(_FullStep):
    """The same as serving runs it, full of so many prompts, of a model with recurrent layers:
    vLLM's profile leaves them out. A single prompt of as many tokens takes `alone_bytes`; the step
    that is profiled in its place, `profiled_bytes`.
    """

    prompts: int
    alone_bytes: int
    profiled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Merge(_FullStep):
    """A step full of encoder outputs, written among the embeddings of the text."""


Demand = WorstStep | LanguageStep | PromptsStep | Merge


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Bytes that the costliest demand takes beyond what is reserved: by the profile, and of it
    `spare_bytes` by a KV cache that was given less. `outside_bytes` of the GPU are left free by
    `gpu_memory_utilization`.
    """

    reserved_bytes: int
    worst: Demand
    outside_bytes: int
    spare_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.worst.nbytes - self.reserved_bytes

    @property
    def passes(self) -> bool:
        return self.nbytes <= VLLM_SLACK_BYTES

    @property
    def fits_outside(self) -> bool:
        """Whether the shortfall only eats the margin that vLLM was told to leave."""
        return self.nbytes <= self.outside_bytes


def worst_step(
    modality: Modality,
    peak_bytes: int,
    profiled_tokens: int,
    limit_tokens: int,
    resident: Resident | None = None,
    kept_bytes: int = 0,
) -> WorstStep:
    """A step full to the encoder budget, from one of whole items: smaller items fill the rest, and
    take no more for each token than the largest.
    """
    share = limit_tokens / profiled_tokens if profiled_tokens else 1.0
    peak = round(peak_bytes * max(1.0, share))
    return WorstStep(modality, limit_tokens, peak, resident or Resident(), kept_bytes=kept_bytes)
